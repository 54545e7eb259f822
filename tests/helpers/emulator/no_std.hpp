// What CUDA gives a kernel that NVRTC compiles, declared alone: no header of any standard library.
#pragma once

#define __CUDACC__
#define __CUDACC_RTC__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
extern const Index threadIdx, blockIdx, blockDim, gridDim;
struct longlong2 {
  long long x, y;
};

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32);
template <typename T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32);
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32);
unsigned __ballot_sync(unsigned mask, int holds);
int __any_sync(unsigned mask, int holds);
int __clz(int bits);
float expf(float x);
float tanhf(float x);
float log1pf(float x);
float nanf(const char* tag);
double exp(double x);
void __syncwarp(unsigned mask = 0xffffffff);
void __syncthreads();
void __threadfence();
int __popc(unsigned bits);
longlong2 __ldcs(const longlong2* at);
template <typename T>
T atomicAdd(T* at, T value);
template <typename T>
T atomicMax(T* at, T value);
int atomicMin(int* at, int value);
int atomicCAS(int* at, int compare, int value);
