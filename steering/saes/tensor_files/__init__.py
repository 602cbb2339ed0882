"""Reads files of tensors without trusting them: safetensors, npz and ``torch.save``.

Start with :func:`steering.saes.tensor_files.registry.open_tensors`; a new kind of file subclasses ``TensorFile``.
"""
