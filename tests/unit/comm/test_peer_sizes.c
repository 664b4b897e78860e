/* The memory that ranks of one machine share for their messages: LATEEN_TRANSFER_MIB bounds it, in
 * whole MiB from 1 to 65,536; it holds the words of all neighbours and, for each, slots that are
 * multiples of 64 KiB. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "comm/peer.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void the_setting(void **state) {
    static const struct {
        const char *text; /* NULL: not set. */
        long mib;         /* 0: not valid. */
    } rows[] = {{NULL, 192},  {"1", 1},
                {"192", 192}, {"65536", 65536},
                {"65537", 0}, {"0", 0},
                {"-1", 0},    {"5x", 0},
                {"x", 0},     {"", 0},
                {"1e3", 0},   {" 7", 7},
                {"7 ", 0},    {"99999999999999999999", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].text != NULL) {
            setenv("LATEEN_TRANSFER_MIB", rows[i].text, 1);
        } else {
            unsetenv("LATEEN_TRANSFER_MIB");
        }
        if (lt_transfer_mib(192) != rows[i].mib) {
            fail_msg("%s: %ld MiB, not %ld", rows[i].text != NULL ? rows[i].text : "not set",
                     lt_transfer_mib(192), rows[i].mib);
        }
    }
    unsetenv("LATEEN_TRANSFER_MIB");
    assert_int_equal(lt_transfer_mib(5), 5);
}

static void sizes(void **state) {
    static const char *const settings[] = {"1", "3", "64", "192", "1000", "65536"};
    (void)state;
    assert_int_equal(lt_peers_bytes(1), 0);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const size_t most = (size_t)atol(settings[i]) * MIB;
        size_t before = SIZE_MAX;
        setenv("LATEEN_TRANSFER_MIB", settings[i], 1);
        for (int n = 2; n <= 2 * LT_PEER_MOST; n++) {
            const size_t slot = lt_comm_device_piece(n), boxes = lt_peers_bytes(n) - 4 * KIB,
                         others = (size_t)(n < LT_PEER_MOST ? n : LT_PEER_MOST) - 1;
            assert_true(slot % (64 * KIB) == 0 && slot >= 64 * KIB && slot <= 16 * MIB);
            /* A box has a lane of slots for collective calls, and lanes of a quarter for pairs. */
            assert_int_equal(boxes,
                             others * LT_PEER_SLOTS * (slot + LT_PEER_PAIR_LANES * slot / 4));
            assert_true(boxes <= most || slot == 64 * KIB);
            /* A larger slot would exceed the setting, or the bound of a slot. */
            assert_true(slot == 16 * MIB ||
                        others * LT_PEER_SLOTS * (slot + 64 * KIB) * (4 + LT_PEER_PAIR_LANES) / 4 >
                            most);
            assert_true(slot <= before);
            before = slot;
        }
        assert_int_equal(lt_peers_bytes(LT_PEER_MOST), lt_peers_bytes(LT_PEER_MOST + 1));
    }
    unsetenv("LATEEN_TRANSFER_MIB");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_setting), cmocka_unit_test(sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
