"""Memory that the cases of a switch have in common: one of them runs, so each may have all of it.

Torch's allocator does not give one piece of memory to two tensors that are alive. CUDA maps one piece of memory to
several addresses, though: every case allocates from a pool of its own, whose addresses lead to the memory of the other
cases. What a kernel writes by one address, later kernels read by another.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Arenas:
    """Maps the memory of cases on one device; lives as long as the process, as torch's pools call it when they end.

    Args:
        device: Its index.
        check: (result of a function of cuda.bindings) -> its values; raises for errors.
    """

    def __init__(self, device: int, check: Callable[[Any], Any]) -> None:
        self._device, self._check = device, check
        self._torch: Any = torch._C
        driver = self._driver = import_module("cuda.bindings.driver")
        self._properties, self._access = driver.CUmemAllocationProp(), driver.CUmemAccessDesc()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        for location in (self._properties.location, self._access.location):
            location.type, location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        minimum = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self._page = int(check(driver.cuMemGetAllocationGranularity(self._properties, minimum)))
        self._functions = _ALLOCATE(self._map), _FREE(self._unmap)
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
        self._allocator = self._torch._cuda_customAllocator(*addresses)
        self._pages: list[Any] = []  # of the current switch
        self._used = 0  # by the current case

    def _map(self, size: int, device: int, stream: int | None) -> int:
        """The address of memory that begins behind what the current case has already; 0 if there is not enough."""
        driver, check, page = self._driver, self._check, self._page
        number = -(-size // page)
        address = int(check(driver.cuMemAddressReserve(number * page, 0, 0, 0)))
        for place in range(number):
            if len(self._pages) == self._used:
                self._pages.append(check(driver.cuMemCreate(page, self._properties, 0)))
            check(driver.cuMemMap(address + place * page, page, 0, self._pages[self._used], 0))
            self._used += 1
        check(driver.cuMemSetAccess(address, number * page, [self._access], 1))
        return address

    def _unmap(self, address: int, size: int, device: int, stream: int | None) -> None:
        length = -(-size // self._page) * self._page
        self._check(self._driver.cuMemUnmap(address, length))
        self._check(self._driver.cuMemAddressFree(address, length))

    @contextmanager
    def case(self, pages: list[Any], pools: list[Any]) -> Iterator[Any]:
        """Allocate from a new pool on these pages instead of the last of the pools; gives it, to be kept."""
        cuda: Any = torch.cuda
        before, (self._pages, self._used) = (self._pages, self._used), (pages, 0)
        pool, around = cuda.MemPool(self._allocator), pools[-1]
        self._torch._cuda_endAllocateToPool(self._device, around.id)  # of several pools torch takes the first
        self._torch._cuda_releasePool(self._device, around.id)
        pools.append(pool)
        try:
            with cuda.use_mem_pool(pool, self._device):
                yield pool
        finally:
            pools.pop()
            self._torch._cuda_beginAllocateCurrentThreadToPool(self._device, around.id)
            self._pages, self._used = before

    def release(self, pages: list[Any]) -> None:
        """Free memory as soon as no address leads to it."""
        for handle in pages:
            self._check(self._driver.cuMemRelease(handle))


arenas_of = cache(Arenas)
