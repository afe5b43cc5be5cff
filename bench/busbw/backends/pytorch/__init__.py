"""Backends over torch.distributed: Gloo and NCCL."""
