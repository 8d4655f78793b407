import os

# Before Triton is loaded: kernels run in its interpreter, on the CPU.
os.environ["TRITON_INTERPRET"] = "1"
