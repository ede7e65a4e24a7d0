"""CUDA MPS: one control daemon per GPU whose cores are divided by it, started and supervised.

`places` says where its folders lie, `launch` becomes the daemon outside of the plugin's container,
`control` speaks with one daemon, `daemon` keeps one alive, `logs` bounds what it writes, and
`supervisor` does so for all GPUs of the node.
"""
