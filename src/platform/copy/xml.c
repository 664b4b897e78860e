/* xml.c: see xml.h. */
#include "platform/copy/xml.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"

void lt_xml_begin(lt_xml *x, const char *text, size_t bytes) {
    x->text = x->at = text;
    x->end = text + bytes;
    x->depth = x->close_next = 0;
    x->name[0] = x->value[0] = '\0';
}

static bool at(const lt_xml *x, const char *word) {
    const size_t n = strlen(word);
    return (size_t)(x->end - x->at) >= n && memcmp(x->at, word, n) == 0;
}

/* Skip everything up to and including `word`. */
static lt_err skip_past(lt_xml *x, const char *word) {
    const size_t n = strlen(word);
    const char *found = memmem(x->at, (size_t)(x->end - x->at), word, n);
    if (found == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "XML: '%s' is missing after byte %td", word, x->at - x->text);
    }
    x->at = found + n;
    return LT_OK;
}

/* Decode an entity such as "&amp;" or "&#13;" at x->at, and step past it. Returns its bytes; 0:
 * XML defines no such entity. */
static size_t entity(lt_xml *x, char out[4]) {
    static const struct {
        const char *text;
        char c;
    } named[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    char digits[16];
    const size_t most = (size_t)(x->end - x->at) < sizeof digits ? (size_t)(x->end - x->at)
                                                                 : sizeof digits;
    const char *end = memchr(x->at, ';', most);
    unsigned long c;
    bool sixteen;

    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (at(x, named[i].text)) {
            x->at += strlen(named[i].text);
            out[0] = named[i].c;
            return 1;
        }
    }
    if (end == NULL || !at(x, "&#")) {
        return 0;
    }
    sixteen = x->at[2] == 'x';
    (void)snprintf(digits, sizeof digits, "%.*s", (int)(end - x->at) - (sixteen ? 3 : 2),
                   x->at + (sixteen ? 3 : 2));
    c = strtoul(digits, NULL, sixteen ? 16 : 10);
    /* strtoul would also accept blanks, signs and a second "0x". */
    if (digits[strspn(digits, sixteen ? "0123456789abcdefABCDEF" : "0123456789")] != '\0' ||
        c == 0 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) {
        return 0;
    }
    x->at = end + 1;
    return lt_utf8_encode((uint32_t)c, out);
}

static lt_err read_text(lt_xml *x) {
    size_t n = 0;
    while (x->at < x->end && *x->at != '<') {
        char decoded[4] = {*x->at};
        size_t more = 1;
        if (*x->at == '&') {
            const char *begin = x->at;
            more = entity(x, decoded);
            if (more == 0) {
                LT_FAIL(LT_ERR_FORMAT, "XML: no entity at byte %td", begin - x->text);
            }
        } else if (*x->at == '\0') {
            LT_FAIL(LT_ERR_FORMAT, "XML: byte %td is 0", x->at - x->text);
        } else {
            x->at++;
        }
        if (n + more >= sizeof x->value) {
            LT_FAIL(LT_ERR_LIMIT, "XML: a text of over %zu bytes at byte %td", sizeof x->value - 1,
                    x->at - x->text);
        }
        memcpy(x->value + n, decoded, more);
        n += more;
    }
    x->value[n] = '\0';
    return LT_OK;
}

/* Read the name at x->at, without its prefix, into x->name. */
static lt_err read_name(lt_xml *x) {
    const char *begin = x->at, *name = begin;
    size_t n;
    while (x->at < x->end && strchr(" \t\r\n/>=<&\"'", *x->at) == NULL) {
        name = *x->at == ':' ? x->at + 1 : name;
        x->at++;
    }
    n = (size_t)(x->at - name);
    if (n == 0 || n >= sizeof x->name || memchr(name, '\0', n) != NULL) {
        LT_FAIL(LT_ERR_FORMAT, "XML: a name of %zu bytes at byte %td", n, begin - x->text);
    }
    memcpy(x->name, name, n);
    x->name[n] = '\0';
    return LT_OK;
}

/* Skip attributes up to '>', which may also occur in a quoted value. */
static lt_err skip_attributes(lt_xml *x) {
    char quote = '\0';
    for (; x->at < x->end; x->at++) {
        if (quote != '\0') {
            quote = *x->at == quote ? '\0' : quote;
        } else if (*x->at == '"' || *x->at == '\'') {
            quote = *x->at;
        } else if (*x->at == '>') {
            return LT_OK;
        } else if (*x->at == '<') {
            break;
        }
    }
    LT_FAIL(LT_ERR_FORMAT, "XML: the tag <%s has no end", x->name);
}

static lt_err read_close(lt_xml *x) {
    x->at += 2;
    LT_TRY(read_name(x));
    LT_TRY(skip_attributes(x));
    x->at++;
    if (x->depth == 0 || strcmp(x->names[x->depth - 1], x->name) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "XML: </%s> at byte %td ends no element that is open", x->name,
                x->at - x->text);
    }
    x->depth--;
    return LT_OK;
}

static lt_err read_open(lt_xml *x) {
    x->at++;
    LT_TRY(read_name(x));
    LT_TRY(skip_attributes(x));
    x->close_next = x->at[-1] == '/';
    x->at++;
    if (x->depth == LT_XML_DEPTH) {
        LT_FAIL(LT_ERR_LIMIT, "XML: more than %d elements within each other", LT_XML_DEPTH);
    }
    memcpy(x->names[x->depth++], x->name, sizeof x->name);
    return LT_OK;
}

lt_err lt_xml_next(lt_xml *x, lt_xml_kind *kind) {
    if (x->close_next != 0) {
        x->close_next = 0;
        x->value[0] = '\0';
        x->depth--;
        *kind = LT_XML_CLOSE;
        return LT_OK;
    }
    for (;;) {
        LT_TRY(read_text(x));
        if (x->at == x->end) {
            if (x->depth > 0) {
                LT_FAIL(LT_ERR_FORMAT, "XML: ends within <%s>", x->names[x->depth - 1]);
            }
            *kind = LT_XML_END;
            return LT_OK;
        }
        if (at(x, "<?")) {
            LT_TRY(skip_past(x, "?>"));
        } else if (at(x, "<!--")) {
            LT_TRY(skip_past(x, "-->"));
        } else if (at(x, "<!")) {
            LT_FAIL(LT_ERR_FORMAT, "XML: a declaration at byte %td", x->at - x->text);
        } else if (at(x, "</")) {
            *kind = LT_XML_CLOSE;
            return read_close(x);
        } else {
            *kind = LT_XML_OPEN;
            return read_open(x);
        }
    }
}
