"""The model on disk: the default one is made here, others are found and checked.

``resolve``   what ``--model`` means: the default model, a local folder or a hub id
``folder``    what a model folder must hold
``default``   the default model: where it lies, whether it is whole, making it once
``convert``   GGUF -> bf16 safetensors + tokeniser (the only module that needs torch)
``cache``     publishing a folder atomically: lock, temporary sibling, fsync, rename
``manifest``  what was made, from what, and how large each file must be

Only ``pdd up`` and set-up call ``resolve``, because it may convert or download. The daemons
are given a folder and check it with ``folder.check_model_folder``; that never leaves this host.
"""
