"""Inpainting of faces: the architecture of an autoencoder is searched, retrained and tested."""
