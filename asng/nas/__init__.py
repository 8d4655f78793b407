"""One-shot search inside any PyTorch model: decisions, elastic layers, search, extraction."""
