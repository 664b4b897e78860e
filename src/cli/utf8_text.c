/* utf8_text.c: see utf8_text.h. */
#include "cli/utf8_text.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

lt_err lt_utf8_mend(const char *what, uint64_t line, bool fails, const char **text, size_t *n,
                    const lt_lone_escapes *lone, lt_text *room, lt_utf8_tally *tally) {
    const size_t n_lone = lone != NULL ? lone->n : 0;
    size_t first = 0;
    const size_t n_bytes = lt_utf8_count_invalid(*text, *n, &first), parts = n_bytes + n_lone;
    const bool lone_first = n_lone > 0 && (n_bytes == 0 || lone->first < first);
    if (parts == 0) {
        return LT_OK;
    }
    first = lone_first ? lone->first : first;
    if (fails) {
        char byte[8];
        snprintf(byte, sizeof byte, "0x%02x", (unsigned char)(*text)[first]);
        LT_FAIL(LT_ERR_FORMAT,
                "%s: invalid UTF-8: %zu parts, the first at byte %zu (%s); --invalid-utf8 replace "
                "reads each as U+FFFD",
                what, parts, first, lone_first ? "a lone surrogate escape" : byte);
    }
    if (tally->parts == 0) {
        tally->line = line;
        tally->byte = first;
    }
    tally->parts += parts;
    tally->lone += n_lone;
    tally->texts++;
    room->n = 0;
    LT_TRY(lt_text_put_valid(room, *text, *n));
    LT_TRY(lt_text_put(room, "", 1));
    *text = room->data;
    *n = room->n - 1;
    return LT_OK;
}

void lt_utf8_tell(const char *what, const lt_utf8_tally *tally) {
    if (tally->parts == 0) {
        return;
    }
    if (tally->line > 0) {
        char lone[64] = "";
        if (tally->lone > 0) {
            snprintf(lone, sizeof lone, LT_LONE_ESCAPES_SAID, (unsigned long long)tally->lone);
        }
        lt_log_warn("%s: invalid UTF-8: %llu parts%s in %llu lines, the first in line %llu at byte "
                    "%zu; each is read as U+FFFD",
                    what, (unsigned long long)tally->parts, lone, (unsigned long long)tally->texts,
                    (unsigned long long)tally->line, tally->byte);
    } else {
        lt_log_warn("%s: invalid UTF-8: %llu parts, the first at byte %zu; each is read as U+FFFD",
                    what, (unsigned long long)tally->parts, tally->byte);
    }
}

lt_err lt_utf8_mend_one(const char *what, bool fails, const char **text, lt_text *room) {
    lt_utf8_tally tally = {0};
    size_t n = strlen(*text);
    LT_TRY(lt_utf8_mend(what, 0, fails, text, &n, NULL, room, &tally));
    lt_utf8_tell(what, &tally);
    return LT_OK;
}
