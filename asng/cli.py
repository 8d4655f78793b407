"""The command line: `asng EXPERIMENT [VERB] [flags]`. Only this module prints."""
