"""The paper's experiments, each one command of `asng`."""
