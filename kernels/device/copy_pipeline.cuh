#pragma once

// Ends a group of copies, and waits until at most `pending` groups of this thread are under way.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void WaitCopies(int pending) {
  if (pending == 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
  if (pending == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  if (pending == 2) asm volatile("cp.async.wait_group 2;" ::: "memory");
}
