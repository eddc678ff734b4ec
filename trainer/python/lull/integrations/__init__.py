"""Lull in the frameworks that people train with; each module imports its framework, and nothing else does."""
