"""Builds the native arena beside the package; everything else is in pyproject.toml.

It is a plain shared library, made to be preloaded, in the clothes of an extension module: nothing
imports it. It is optional: without it lull.run compiles the source, or memory goes back through malloc.
"""

from setuptools import Extension, setup  # type: ignore[import-untyped]

setup(
    ext_modules=[
        Extension(
            "lull._native",
            sources=["csrc/arena.c"],
            extra_compile_args=["-O2", "-fvisibility=hidden"],
            libraries=["pthread", "dl"],
            optional=True,
        )
    ]
)
