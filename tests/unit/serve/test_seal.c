/* Sealed texts: only their owner's key opens them, and no key opens a changed text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api/stored/seal.h"

static void opens_what_it_sealed(void **state) {
    lt_seal_key key, again, other, none;
    static const char text[] = "First the units, then the tens. \xC3\xA9";
    (void)state;
    assert_int_equal(lt_seal_key_make(&key, "k-1"), LT_OK);
    assert_int_equal(lt_seal_key_make(&again, "k-1"), LT_OK);
    assert_int_equal(lt_seal_key_make(&other, "k-2"), LT_OK);
    assert_int_equal(lt_seal_key_make(&none, ""), LT_OK);
    for (size_t n = 0; n < sizeof text; n++) { /* Every length of base64's padding. */
        size_t got = 99;
        char *sealed = lt_seal(&key, text, n), *opened;
        assert_null(lt_unseal(&other, sealed, strlen(sealed), &got));
        assert_null(lt_unseal(&none, sealed, strlen(sealed), &got));
        opened = lt_unseal(&again, sealed, strlen(sealed), &got);
        assert_non_null(opened);
        assert_int_equal(got, n);
        assert_memory_equal(opened, text, n);
        assert_null(strstr(sealed, "units"));
        free(opened);
        free(sealed);
    }
}

static void refuses_what_was_changed(void **state) {
    lt_seal_key key;
    size_t n = 0;
    char *sealed, *twice;
    (void)state;
    assert_int_equal(lt_seal_key_make(&key, "k"), LT_OK);
    sealed = lt_seal(&key, "some thoughts", 13);
    twice = lt_seal(&key, "some thoughts", 13);
    assert_string_not_equal(sealed, twice); /* Each has a nonce of its own. */
    for (size_t i = 0; i < strlen(sealed); i++) {
        const char was = sealed[i];
        char *opened;
        sealed[i] = was == 'A' ? 'B' : 'A';
        opened = lt_unseal(&key, sealed, strlen(sealed), &n);
        /* The last letter before the padding has bits without meaning. */
        assert_true(opened == NULL || memcmp(opened, "some thoughts", 13) == 0);
        free(opened);
        sealed[i] = was;
    }
    for (size_t i = 0; i < strlen(sealed); i++) {
        assert_null(lt_unseal(&key, sealed, i, &n));
    }
    assert_null(lt_unseal(&key, "gAAAAABo not a seal of ours", 27, &n));
    assert_null(lt_unseal(&key, "====", 4, &n));
    free(sealed);
    free(twice);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(opens_what_it_sealed),
                                       cmocka_unit_test(refuses_what_was_changed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
