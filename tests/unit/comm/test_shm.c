/* What a rank gets in its environment from `lateen launch`: each variable that is missing, is no
 * number, or does not go with the memory segment is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "comm/shm.h"
#include "lateen/comm.h"

static void put(const char *name, const char *value) {
    assert_int_equal(value != NULL ? setenv(name, value, 1) : unsetenv(name), 0);
}

/* NULL: not set. segment "ours": that of two ranks in epoch 3. */
static void refused(const char *ranks, const char *rank, const char *segment, const char *epoch,
                    const char *token, lt_err want, const char *words) {
    lt_comm *c = NULL;
    char number[16];
    int fd = -1;
    assert_int_equal(lt_shm_make(&fd, 2, 3), LT_OK);
    (void)snprintf(number, sizeof number, "%d", fd);
    put(LT_ENV_RANKS, ranks);
    put(LT_ENV_RANK, rank);
    put(LT_ENV_SEGMENT, segment != NULL && strcmp(segment, "ours") == 0 ? number : segment);
    put(LT_ENV_EPOCH, epoch);
    put(LT_ENV_STORE, "127.0.0.1:1");
    put(LT_ENV_TOKEN, token);
    assert_int_equal(lt_comm_open_shm(&c, NULL), want);
    assert_null(c);
    if (strstr(lt_error_message(), words) == NULL) {
        fail_msg("'%s' does not say '%s'", lt_error_message(), words);
    }
    (void)close(fd);
}

static void numbers(void **state) {
    (void)state;
    refused(NULL, "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='': not what lateen launch");
    refused("", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS=''");
    refused("257", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='257'");
    refused("2x", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='2x'");
    refused("-2", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS='-2'");
    refused(" 2", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANKS=' 2'");
    refused("2", "2", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANK='2'");
    refused("2", NULL, "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANK=''");
    refused("2", "x", "ours", "3", "t", LT_ERR_ARG, "LATEEN_RANK='x'");
    refused("2", "1", "-1", "3", "t", LT_ERR_ARG, "LATEEN_SEGMENT='-1'");
    refused("2", "1", "ours", "late", "t", LT_ERR_ARG, "LATEEN_EPOCH='late'");
    refused("0", "0", "ours", "3", "t", LT_ERR_ARG, "LATEEN_SEGMENT without LATEEN_RANKS");
    refused("2", "1", "ours", "3", NULL, LT_ERR_ARG, "LATEEN_SEGMENT without LATEEN_RANKS");
}

static void segments(void **state) {
    (void)state;
    refused("2", "1", "1048576", "3", "t", LT_ERR_ARG,
            "LATEEN_SEGMENT=1048576 is not the memory segment of 2 ranks");
    refused("3", "1", "ours", "3", "t", LT_ERR_ARG, "is not the memory segment of 3 ranks");
    refused("2", "1", "ours", "4", "t", LT_ERR_STATE,
            "memory segment of 2 ranks and epoch 3, not of 2 and 4");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(segments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
