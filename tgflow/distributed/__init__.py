"""Worlds of many ranks: how they meet, what they send each other, and how they are started.

`parcel`, `reduce` and `control` are written over the protocol `tgflow.peers.Peers` alone; `ranks`
and what is behind `join` over `torch.distributed`.
"""
