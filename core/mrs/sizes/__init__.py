"""What each kernel takes beside its inputs, and the sizes that decide it. No torch.

Kernels run with these numbers and the planner counts with them: a file a kernel.
"""
