"""Builds the native arenas beside the package; everything else is in pyproject.toml.

They are plain shared libraries in the clothes of extension modules: nothing imports them. arena.c is made to be
preloaded, vmm.c is the one for GPUs and needs nothing of CUDA. They are optional: without one the source is compiled
when it is first needed, or memory goes back through malloc, or through PyTorch's own CUDA allocator.
"""

from setuptools import Extension, setup  # type: ignore[import-untyped]

setup(
    ext_modules=[
        Extension(
            "lull._native",
            sources=["csrc/arena.c"],
            depends=["csrc/capped.h"],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            libraries=["pthread", "dl"],
            optional=True,
        ),
        Extension(
            "lull._cuda_native",
            sources=["csrc/vmm.c"],
            depends=["csrc/capped.h", "csrc/vmm.h"],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            libraries=["pthread", "dl"],
            optional=True,
        ),
    ]
)
