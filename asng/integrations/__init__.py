"""Bridges to other libraries; each module imports its own optional dependency."""
