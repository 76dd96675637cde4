"""`mooncake.store` on a holdfast cluster: programs written for Mooncake Store run unchanged.

`store` is the module that stands in for `mooncake.store`; `import_hook` puts it in that place. docs/engines/mooncake.md
tells what is supported and how to switch.
"""
