/* emu.h: what an emulated kernel calls in the emulated device. The runtime (C) and device.h (C++,
 * before every kernel) include it.
 *
 * A kernel is an ordinary shared library. Its threads are fibers (fiber.h) that one host thread
 * runs in turn, one cluster (or one block, without clusters) at a time (block.c). A thread yields
 * only where it waits: at a barrier, at an instruction of the whole warp, in a spin on memory. So
 * between two such places a thread runs alone, and a debugger steps through it as through any
 * function.
 *
 * What Hopper does asynchronously (copies.c, products.c) happens at a random moment between its
 * beginning and the wait for it, in a random order among those that the device allows, so that a
 * program which relies on more than is promised gives different results for some seed.
 *
 * Shared memory is one window of the host's memory for each block: the dynamic part first, then the
 * static arrays with guards between, all filled with ones (NaN in every float type, -1 as an
 * integer) before the first thread starts. A 32-bit shared address is an offset in the window
 * plus EMU_SHARED_BASE. */
#ifndef LT_EMU_H
#define LT_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_WARP         32
#define EMU_SHARED_BASE  0x400u /* So that a null pointer used as a shared address is detected. */
#define EMU_SHARED_BYTES (228u << 10)

typedef struct {
    unsigned x, y, z;
} emu_dim3;

/* The public part of a thread; block.c keeps the rest after it. */
typedef struct {
    emu_dim3 thread, block, block_dim, grid_dim;
    unsigned rank, lane, warp; /* Of the block; of the warp. */
    unsigned cluster_rank;     /* Of its block. */
    /* Number of groups of copies without a barrier that it has closed. */
    int bulk_group;
} emu_thread;

/* The thread that runs now. The model is initial-exec, so that an access is two loads. */
extern __thread emu_thread *emu_self __attribute__((tls_model("initial-exec")));

/* An operation of several lanes: lanes[i] is what lane i contributes, NULL if it is not in
 * `mask`. The last lane to arrive calls it once. */
typedef void (*emu_together)(void *const lanes[EMU_WARP], unsigned mask);
void emu_warp(unsigned mask, emu_together together, void *mine, const char *what);

/* Barrier `id` of the block; threads 0: all threads that have not left. arrive: count without
 * waiting. */
void emu_barrier(int id, int threads);
void emu_barrier_arrive(int id, int threads);
void emu_spin(void); /* The thread has nothing to do until another thread or block has run. */

/* The block's array for the declaration `site`: the same for all its threads. */
void *emu_shared(const void *site, size_t bytes, size_t align, const char *name);
void *emu_shared_dynamic(void);
uint32_t emu_shared_address(const void *p); /* Ends the program if p is not in shared memory. */
void *emu_shared_pointer(uint32_t address, size_t bytes);

/* cp.async: carried out as late as the program allows, at the wait, so that a missing wait is
 * seen. */
void emu_cp_async(void *dst, const void *src, int bytes, int take);
void emu_cp_async_commit(void);
void emu_cp_async_wait(int n);

/* ---- Hopper */
void emu_cluster_arrive(void);
void emu_cluster_wait(void);
uint32_t emu_cluster_address(uint32_t address, uint32_t rank); /* mapa. */
/* The memory that a plain load or store of such an address accesses; for a block that has left, a
 * trap. */
void *emu_cluster_pointer(uint32_t address, size_t bytes);

/* Barriers in shared memory, 8 bytes that count arrivals and bytes. address: in the caller's
 * block, or a result of emu_cluster_address. */
void emu_mbarrier_init(uint32_t bar, int arrivals);
/* bytes: what copies will bring in this phase. */
void emu_mbarrier_arrive(uint32_t bar, uint32_t bytes);
/* True once the phase of that parity is over. */
bool emu_mbarrier_wait(uint32_t bar, uint32_t parity);

/* The copy engine. For copies to shared memory a barrier counts the bytes; copies to global
 * memory are waited for in groups, until these are `read`, or done. */
typedef enum { EMU_COPY, EMU_ADD } emu_bulk;
void emu_bulk_load(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar);
void emu_bulk_send(uint32_t dst, uint32_t src, uint32_t bytes, uint32_t bar);
void emu_bulk_store(void *dst, uint32_t src, uint32_t bytes, emu_bulk how); /* EMU_ADD: of S32. */
void emu_tensor_load(uint32_t dst, const void *map, uint32_t bar, int rank, const int *at,
                     unsigned blocks);
void emu_tensor_store(const void *map, uint32_t src, int rank, const int *at, emu_bulk how);
void emu_bulk_commit(void);
void emu_bulk_wait(int groups, bool read);
void emu_release(void); /* What the block has waited for becomes visible to all. */
void emu_store_async(uint32_t dst, const float *values, int n, uint32_t bar);

/* A tensor map's 128 bytes, as cuTensorMapEncodeTiled writes them. */
typedef struct {
    uint32_t mark; /* EMU_TENSOR_MARK. */
    uint8_t type, rank, swizzle, element_bytes;
    unsigned char *base;
    uint64_t size[5], stride[5]; /* Elements; bytes. */
    uint16_t box[5];
} emu_tensor;
#define EMU_TENSOR_MARK 0x7e45a9b1u

/* wgmma: D (64 x n) += A (64 x k) B (k x n) by a warpgroup; each lane contributes its own d and,
 * if A is in registers, its a. */
typedef enum { EMU_BF16, EMU_F16, EMU_E4M3, EMU_E5M2 } emu_type16;
typedef struct {
    float *d; /* n / 2 values, which the product writes at any moment before the wait. */
    int n;
    emu_type16 a_type, b_type;
    bool a_held, a_transposed, b_transposed, adds;
    uint32_t a[4];
    uint64_t a_place, b_place; /* Matrix descriptors. */
} emu_wgmma;
void emu_wgmma_issue(emu_wgmma *mine);
void emu_wgmma_commit(void);
void emu_wgmma_wait(int groups);

/* Conversions of words of 16 and of 8 bits. */
float emu_f8_to_f32(uint8_t code, bool e5m2);
uint8_t emu_f32_to_f8(float x, bool e5m2);
float emu_f16_to_f32(uint16_t h);
uint16_t emu_f32_to_f16(float x);
uint16_t emu_f32_to_bf16(float x);

/* mma.sync.m16n8k16: d += a b; each lane contributes an emu_mma. */
typedef struct {
    float d[4];
    uint32_t a[4], b[2];
} emu_mma;
void emu_mma_bf16(void *const lanes[EMU_WARP], unsigned mask);
void emu_mma_f16(void *const lanes[EMU_WARP], unsigned mask);

/* mma.sync.m16n8k32 of bytes, or of 16 columns with half of the words zero: d += a b, with a
 * unsigned or signed. */
typedef struct {
    int32_t d[4];
    uint32_t a[4], b[2];
} emu_imma;
void emu_mma_u8(void *const lanes[EMU_WARP], unsigned mask);
void emu_mma_s8(void *const lanes[EMU_WARP], unsigned mask);

int emu_capability(void);     /* 80 or 90: LATEEN_EMU_CAPABILITY. */
size_t emu_shared_most(void); /* Of a block. */

/* Report an error with kernel, block and thread, and end the program (a debugger stops there). */
__attribute__((noreturn, format(printf, 1, 2))) void emu_trap(const char *fmt, ...);

/* What a kernel's library exports for each of its kernels, as emu_entry_NAME. */
typedef struct {
    void (*call)(void **args);
    const uint32_t *arg_bytes;
    int n_args;
    int threads_max; /* From __launch_bounds__. */
} emu_entry;

#ifdef __cplusplus
}
#endif

#endif
