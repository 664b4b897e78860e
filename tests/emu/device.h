/* device.h: CUDA C for the host's C++ compiler. nvrtc.c puts it before every kernel, and rewrites
 * what no macro can (rewrite.c):
 *
 *     __shared__ float x[8], y;        float (&x)[8] = EMU_SHARED(...), &y = EMU_SHARED(...);
 *     asm("cvt.rn.bf16.f32 ..." ...)   ptx_cvt_rn_bf16_f32(...)                               ptx.h
 *     __global__ void k(...) { ... }   the same, and an entry behind it that takes the driver's
 *                                      array of arguments
 *
 * It is added after preprocessing, so that names of macros here cannot collide with those of a
 * kernel. It has only what our kernels use; a kernel that needs more does not compile, and the
 * error names what is missing. Products are not contracted to fused multiply-adds
 * (-ffp-contract=off), except where a kernel says __fmaf_rn. */
#ifndef LT_EMU_DEVICE_H
#define LT_EMU_DEVICE_H

#include "emu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) alignas(n)

#define threadIdx (emu_self->thread)
#define blockIdx  (emu_self->block)
#define blockDim  (emu_self->block_dim)
#define gridDim   (emu_self->grid_dim)

/* ---- Vectors: with the alignment that the device demands, so that -fsanitize=alignment finds what
 * it would refuse. */
#define EMU_VECTOR(type, name, align2, align4)                                                     \
    struct alignas(align2) name##2 {                                                               \
        type x, y;                                                                                 \
    };                                                                                             \
    struct name##3 {                                                                               \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct alignas(align4) name##4 {                                                               \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y) {                                         \
        return {x, y};                                                                             \
    }                                                                                              \
    static inline name##3 make_##name##3(type x, type y, type z) {                                 \
        return {x, y, z};                                                                          \
    }                                                                                              \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                         \
        return {x, y, z, w};                                                                       \
    }
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(unsigned, uint, 8, 16)
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(double, double, 16, 16)
#undef EMU_VECTOR

/* ---- Arithmetic */
extern "C" {
float expf(float) noexcept;
float exp2f(float) noexcept;
float expm1f(float) noexcept;
float logf(float) noexcept;
float log2f(float) noexcept;
float log1pf(float) noexcept;
float powf(float, float) noexcept;
float sinf(float) noexcept;
float cosf(float) noexcept;
float tanhf(float) noexcept;
float erff(float) noexcept;
float sqrtf(float) noexcept;
float floorf(float) noexcept;
float ceilf(float) noexcept;
float rintf(float) noexcept;
float fmaf(float, float, float) noexcept;
double exp(double) noexcept;
double exp2(double) noexcept;
double log(double) noexcept;
double log2(double) noexcept;
double pow(double, double) noexcept;
double sin(double) noexcept;
double cos(double) noexcept;
double tanh(double) noexcept;
double ceil(double) noexcept;
double sqrt(double) noexcept;
}
static inline float fabsf(float x) {
    return __builtin_fabsf(x);
}
static inline double fabs(double x) {
    return __builtin_fabs(x);
}
/* fmaxf of a number and a NaN is the number. This needs no call. */
static inline float fmaxf(float a, float b) {
    return a > b || b != b ? a : b;
}
static inline float fminf(float a, float b) {
    return a < b || b != b ? a : b;
}
static inline double fmax(double a, double b) {
    return a > b || b != b ? a : b;
}
static inline double fmin(double a, double b) {
    return a < b || b != b ? a : b;
}
static inline float rsqrtf(float x) {
    return (float)(1.0 / sqrt((double)x));
}
static inline float cospif(float x) {
    return (float)cos(3.14159265358979323846 * (double)x);
}
static inline float sinpif(float x) {
    return (float)sin(3.14159265358979323846 * (double)x);
}
template <class A, class B> static inline auto min(A a, B b) -> decltype(a + b) {
    return a < b ? a : b;
}
template <class A, class B> static inline auto max(A a, B b) -> decltype(a + b) {
    return a > b ? a : b;
}
static inline float __expf(float x) {
    return expf(x);
}
static inline float __logf(float x) {
    return logf(x);
}
static inline float __log2f(float x) {
    return log2f(x);
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline double __dsub_rn(double a, double b) {
    return a - b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline double __ddiv_rn(double a, double b) {
    return a / b;
}
static inline float __double2float_rn(double x) {
    return (float)x;
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
static inline int __float2int_rn(float x) { /* Saturates; NaN gives 0, as on the device. */
    return x != x ? 0 : x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1 : (int)rintf(x);
}

static inline unsigned long long __float2ull_rn(float x) { /* Saturates; NaN gives 2^63. */
    return x != x         ? 1ull << 63
           : x <= 0.0f    ? 0
           : x >= 0x1p64f ? ~0ull
                          : (unsigned long long)rintf(x);
}

/* ---- Bits */
template <class To, class From> static inline To emu_bits(From x) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __uint_as_float(unsigned x) {
    return emu_bits<float>(x);
}
static inline unsigned __float_as_uint(float x) {
    return emu_bits<unsigned>(x);
}
static inline float __int_as_float(int x) {
    return emu_bits<float>(x);
}
static inline int __float_as_int(float x) {
    return emu_bits<int>(x);
}
static inline long long __double_as_longlong(double x) {
    return emu_bits<long long>(x);
}
static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz((unsigned)x);
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) {
        c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
    }
    return c;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = selector >> 4 * i & 15;
        const unsigned byte = (unsigned)(both >> 8 * (pick & 7)) & 0xff;
        out |= (pick & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte) << 8 * i;
    }
    return out;
}

/* ---- Memory */
template <class T> static inline T __ldcs(const T *p) {
    return *p;
}
template <class T> static inline T __ldcg(const T *p) {
    return *p;
}
template <class T> static inline T __ldg(const T *p) {
    return *p;
}
template <class T> static inline void __stcs(T *p, T x) {
    *p = x;
}
template <class T> static inline void __stcg(T *p, T x) {
    *p = x;
}
static inline void __threadfence(void) {
    emu_release();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block(void) {
}
static inline size_t __cvta_generic_to_shared(const void *p) {
    return emu_shared_address(p);
}
/* Any type of 4 or 8 bytes: its bits are compared and swapped. */
template <int BYTES> struct emu_word;
template <> struct emu_word<4> { typedef unsigned type; };
template <> struct emu_word<8> { typedef unsigned long long type; };
template <class T, class Op> static inline T emu_atomic(T *p, Op op) {
    typedef typename emu_word<sizeof(T)>::type word;
    word *const at = (word *)p;
    word old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &old, emu_bits<word>(op(emu_bits<T>(old))), true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
    return emu_bits<T>(old);
}
template <class T> struct emu_same { typedef T type; };
template <class T> static inline T atomicAdd(T *p, typename emu_same<T>::type x) {
    return emu_atomic(p, [x](T old) { return (T)(old + x); });
}
template <class T> static inline T atomicMax(T *p, typename emu_same<T>::type x) {
    return emu_atomic(p, [x](T old) { return old > x ? old : x; });
}
template <class T> static inline T atomicMin(T *p, typename emu_same<T>::type x) {
    return emu_atomic(p, [x](T old) { return old < x ? old : x; });
}
template <class T> static inline T atomicExch(T *p, typename emu_same<T>::type x) {
    return emu_atomic(p, [x](T) { return x; });
}
template <class T> static inline T atomicOr(T *p, typename emu_same<T>::type x) {
    return emu_atomic(p, [x](T old) { return (T)(old | x); });
}
template <class T>
static inline T atomicCAS(T *p, typename emu_same<T>::type from, typename emu_same<T>::type to) {
    return emu_atomic(p, [from, to](T old) { return old == from ? to : old; });
}

/* ---- Waiting */
static inline void __syncthreads(void) {
    emu_barrier(0, 0);
}
static inline int __syncthreads_count(int predicate) {
    static const char site = 0;
    int *const n = (int *)emu_shared(&site, sizeof *n, alignof(int), "__syncthreads_count");
    emu_barrier(0, 0);
    *n = 0;
    emu_barrier(0, 0);
    *n += predicate != 0;
    emu_barrier(0, 0);
    return *n;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emu_warp(mask, nullptr, nullptr, "__syncwarp");
}
static inline void __nanosleep(unsigned) {
    emu_spin();
}

/* ---- The warp: each lane contributes a struct, and the last one to arrive fills in the
 * answers. */
template <class T> struct emu_exchange {
    T value, answer;
    int from;
};
template <class T> static void emu_exchange_all(void *const lanes[EMU_WARP], unsigned mask) {
    for (int i = 0; i < EMU_WARP; i++) {
        emu_exchange<T> *const e = (emu_exchange<T> *)lanes[i];
        if (e == nullptr) {
            continue;
        }
        if (lanes[e->from] == nullptr) {
            emu_trap("lane %d asks for the value of lane %d, which takes no part (mask %08x)", i,
                     e->from, mask);
        }
        e->answer = ((emu_exchange<T> *)lanes[e->from])->value;
    }
}
template <class T> static inline T emu_shuffle(unsigned mask, T x, int from, const char *what) {
    emu_exchange<T> mine = {x, x, from};
    emu_warp(mask, emu_exchange_all<T>, &mine, what);
    return mine.answer;
}
/* Lane `to` of the caller's group of `width`, or the caller's own lane if `to` is outside [first,
 * last]. */
static inline int emu_lane_in(int to, int width, bool inside) {
    const int lane = (int)emu_self->lane;
    return inside ? (lane & ~(width - 1)) + to : lane;
}
template <class T> static inline T __shfl_sync(unsigned mask, T x, int lane, int width = 32) {
    return emu_shuffle(mask, x, emu_lane_in(lane & (width - 1), width, true), "__shfl_sync");
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32) {
    const int to = ((int)emu_self->lane & (width - 1)) ^ bits;
    return emu_shuffle(mask, x, emu_lane_in(to, width, to < width), "__shfl_xor_sync");
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, int by, int width = 32) {
    const int to = ((int)emu_self->lane & (width - 1)) - by;
    return emu_shuffle(mask, x, emu_lane_in(to, width, to >= 0), "__shfl_up_sync");
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T x, int by, int width = 32) {
    const int to = ((int)emu_self->lane & (width - 1)) + by;
    return emu_shuffle(mask, x, emu_lane_in(to, width, to < width), "__shfl_down_sync");
}
struct emu_vote {
    unsigned value, answer;
};
static void emu_ballot_all(void *const lanes[EMU_WARP], unsigned mask) {
    unsigned votes = 0;
    for (int i = 0; i < EMU_WARP; i++) {
        votes |= (mask >> i & 1u) && ((emu_vote *)lanes[i])->value ? 1u << i : 0u;
    }
    for (int i = 0; i < EMU_WARP; i++) {
        if (mask >> i & 1u) {
            ((emu_vote *)lanes[i])->answer = votes;
        }
    }
}
static void emu_match_all(void *const lanes[EMU_WARP], unsigned mask) {
    for (int i = 0; i < EMU_WARP; i++) {
        for (int j = 0; mask >> i & 1u && j < EMU_WARP; j++) {
            if (mask >> j & 1u && ((emu_vote *)lanes[i])->value == ((emu_vote *)lanes[j])->value) {
                ((emu_vote *)lanes[i])->answer |= 1u << j;
            }
        }
    }
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    emu_vote mine = {predicate != 0, 0};
    emu_warp(mask, emu_ballot_all, &mine, "__ballot_sync");
    return mine.answer;
}
static inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
static inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, !predicate) == 0;
}
static inline unsigned __match_any_sync(unsigned mask, unsigned value) {
    emu_vote mine = {value, 0};
    emu_warp(mask, emu_match_all, &mine, "__match_any_sync");
    return mine.answer;
}

/* ---- Names that rewrite.c writes */
template <class T> using emu_type = T; /* So that a type with brackets can be used anywhere. */
#define EMU_SHARED(id, name, ...)                                                                  \
    (*(emu_type<__VA_ARGS__> *)emu_shared((const void *)(id), sizeof(__VA_ARGS__),                 \
                                          alignof(__VA_ARGS__), name))

/* Hidden and not unique (options in nvrtc.c): the library of another kernel may have a different
 * args_t of the same name. */
template <class... P> struct emu_sizes {
    static constexpr uint32_t bytes[sizeof...(P) + 1] = {(uint32_t)sizeof(P)..., 0};
};
template <int...> struct emu_numbers {};
template <class... P, int... I>
static inline void emu_call(void (*f)(P...), void **args, emu_numbers<I...>) {
    f(*(P *)args[I]...);
}
template <class... P> static inline constexpr const uint32_t *emu_bytes_of(void (*)(P...)) {
    return emu_sizes<P...>::bytes;
}
template <class... P> static inline constexpr int emu_count_of(void (*)(P...)) {
    return (int)sizeof...(P);
}
template <class... P> static inline void emu_call_all(void (*f)(P...), void **args) {
    emu_call(f, args, emu_numbers<__integer_pack((int)sizeof...(P))...>());
}
#define EMU_ENTRY(name, bounds)                                                                    \
    static void emu_call_##name(void **args) {                                                     \
        emu_call_all(name, args);                                                                  \
    }                                                                                              \
    extern "C" __attribute__((visibility("default"))) const emu_entry emu_entry_##name = {         \
        emu_call_##name, emu_bytes_of(name), emu_count_of(name), bounds};

#include "ptx.h"
#include "ptx_hopper.h"

#endif
