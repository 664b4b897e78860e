/* python_random.h: random.Random(seed).sample of Python, which draws the solved examples of
 * lm-evaluation-harness: the Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), seeded as
 * Python seeds it with an integer below 2^32. */
#ifndef LT_ALIGN_PYTHON_RANDOM_H
#define LT_ALIGN_PYTHON_RANDOM_H

#include <stdint.h>

typedef struct {
    uint32_t state[624];
    int at;
} lt_python_random;

void lt_python_random_seed(lt_python_random *r, uint32_t seed);
/* k distinct numbers of [0, n), in the order in which Python draws them. 1 <= k <= n, k <= 64. */
void lt_python_random_sample(lt_python_random *r, int64_t n, int64_t k, int64_t *out);

#endif
