/* grammar/format.c: the formats that JSON schema's drafts list, as patterns. Every text of a
 * pattern is valid by its RFC. Where an RFC cannot be written as a pattern of reasonable size, the
 * pattern covers a part of it:
 *
 *     hostname, email       labels without "--" as third and fourth letters, for which xn-- would
 *                           need a decoder; at most 3 labels, or 8 of up to 30 characters
 *     idn-hostname          labels of letters and digits of common scripts that run from left to
 *                           right
 *     time, date-time       no leap seconds but 23:59:60Z; at most 9 digits of a second's fraction
 *     regex                 what ECMAScript and Python both read: no look-around, back-reference or
 *                           named group; groups three deep */
#include <string.h>

#include "serve/grammar/schema.h"

/* ---- dates ---- */

#define LEAP_2 "(0[48]|[2468][048]|[13579][26])"
#define DATE                                                                                       \
    "((000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[" \
    "469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))|(\\d{2}" LEAP_2 "|" LEAP_2 "00)-02-29)"
#define TIME                                                                                       \
    "(([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?([Zz]|[+-]([01]\\d|2[0-3]):[0-5]\\d)|"       \
    "23:59:60(\\.\\d{1,9})?([Zz]|[+-]00:00))"
#define COUNT "\\d{1,9}"
#define DUR_T "T(" COUNT "H(" COUNT "M(" COUNT "S)?)?|" COUNT "M(" COUNT "S)?|" COUNT "S)"
#define DUR_D "(" COUNT "Y(" COUNT "M(" COUNT "D)?)?|" COUNT "M(" COUNT "D)?|" COUNT "D)"

/* ---- hosts ---- */

#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4  "(" OCTET "\\.){3}" OCTET
#define H16   "[0-9A-Fa-f]{1,4}"
#define LS32  "(" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16      \
    ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32        \
    "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16      \
    ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define AN "[A-Za-z0-9]"
#define LD "[A-Za-z0-9-]"
#define LABEL(more)                                                                                \
    AN "(" AN "|" LD AN "|" LD LD AN "|" LD "(" AN LD "|-" AN ")" LD "{0," more "}" AN ")?"
/* Four characters: the third and fourth are not both hyphens, as the last is none. */
#define HOST "(" LABEL("58") "(\\." LABEL("58") "){0,2}|" LABEL("25") "(\\." LABEL("25") "){0,7})"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define LOCAL                                                                                      \
    "(" ATOM "{1,64}|" ATOM "{1,15}(\\." ATOM "{1,15}){1,3}|\"([ !#-\\[\\]-~]|\\\\[ -~]){0,31}\")"
#define MAIL_HOST "(" HOST "|\\[" IPV4 "\\]|\\[IPv6:" IPV6 "\\])"

/* Letters that IDNA 2008 allows everywhere, in scripts that run from left to right: Latin, Greek,
 * Cyrillic, Kana, Han, Hangul. */
#define IDN                                                                                        \
    "\\u00DF-\\u00F6\\u00F8-\\u00FF\\u03B1-\\u03C1\\u03C3-\\u03C9\\u0430-\\u045F"                  \
    "\\u3041-\\u3096\\u30A1-\\u30FA\\u4E00-\\u9FCC\\uAC00-\\uD7A3"
#define IDN_CHAR  "[a-z0-9" IDN "]"
#define IDN_LABEL "(" IDN_CHAR "{1,9}|" IDN_CHAR "{1,4}-" IDN_CHAR "{1,4}|" LABEL("25") ")"
#define IDN_HOST  IDN_LABEL "(\\." IDN_LABEL "){0,6}"
#define IDN_ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\u00A1-\\uD7FF-]"

/* ---- addresses ---- */

/* U: characters beyond ASCII; Q: those that only a query may have. */
#define PCT      "%[0-9A-Fa-f]{2}"
#define CH(u)    "([A-Za-z0-9._~!$&'()*+,;=" u "-]|" PCT ")"
#define PCHAR(u) "([A-Za-z0-9._~!$&'()*+,;=:@" u "-]|" PCT ")"
#define UCHAR(u) "([A-Za-z0-9._~!$&'()*+,;=:" u "-]|" PCT ")"
#define NCHAR(u) "([A-Za-z0-9._~!$&'()*+,;=@" u "-]|" PCT ")"
#define QUERY(u, q)                                                                                \
    "(\\?([A-Za-z0-9._~!$&'()*+,;=:@/?" u q "-]|" PCT ")*)?"                                       \
    "(#([A-Za-z0-9._~!$&'()*+,;=:@/?" u "-]|" PCT ")*)?"
#define AUTHORITY(u) "//(" UCHAR(u) "*@)?(\\[" IPV6 "\\]|" CH(u) "*)(:\\d*)?(/" PCHAR(u) "*)*"
#define ABSOLUTE(u)  "/(" PCHAR(u) "+(/" PCHAR(u) "*)*)?"
#define ADDRESS(u, q)                                                                              \
    "[A-Za-z][A-Za-z0-9+.-]*:(" AUTHORITY(u) "|" ABSOLUTE(u) "|" PCHAR(u) "+(/" PCHAR(             \
        u) "*)*)?" QUERY(u, q)
#define RELATIVE(u, q)                                                                             \
    "(" AUTHORITY(u) "|" ABSOLUTE(u) "|" NCHAR(u) "+(/" PCHAR(u) "*)*)?" QUERY(u, q)
#define U "\\u00A0-\\uD7FF\\uF900-\\uFDCF\\uFDF0-\\uFFEF\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}"
#define Q "\\uE000-\\uF8FF"

#define VAR  "([A-Za-z0-9_]|" PCT ")"
#define SPEC VAR "(\\.?" VAR ")*(:[1-9]\\d{0,3}|\\*)?"
#define TEMPLATE                                                                                   \
    "([A-Za-z0-9._~:/?#\\[\\]@!$&()*+,;=" U "-]|" PCT "|\\{[+#./;?&]?" SPEC "(," SPEC ")*\\})*"

#define POINTER "(/([^~/]|~[01])*)*"

/* ---- regular expressions ---- */

#define RX_ESCAPE "\\\\[dDwWsSnrtfv.*+?()\\[\\]{}|^$\\\\/-]"
#define RX_CLASS                                                                                   \
    "\\[\\^?([A-Za-z0-9_ .,:;@#%!=<>/+*?()'\"]|a-z|A-Z|0-9|a-f|A-F|" RX_ESCAPE ")+-?\\]"
#define RX_CHAR "[^\\\\.*+?()\\[\\]{}|^$\\x00-\\x1F]"
#define RX_TIMES                                                                                   \
    "(([*+?]|\\{(\\d{1,2}|\\d,|0,[1-9]\\d?|1,[2-9]|2,[3-9]|3,[4-9]|\\d,[1-9]\\d)\\})[?]?)?"
#define RX_FLAT "((" RX_ESCAPE "|" RX_CLASS "|" RX_CHAR "|\\.)" RX_TIMES "|[\\^$|])*"
#define RX_IN(x)                                                                                   \
    "((" RX_ESCAPE "|" RX_CLASS "|" RX_CHAR "|\\.|\\((\\?:)?" x "\\))" RX_TIMES "|[\\^$|])*"

const char *const *lt_gschema_format(const char *name) {
    static const struct {
        const char *name, *patterns[3];
    } rows[] = {
        {"date", {"^" DATE "$"}},
        {"time", {"^" TIME "$"}},
        {"date-time", {"^" DATE "[Tt]" TIME "$"}},
        {"duration", {"^P(" COUNT "W|" DUR_D "(" DUR_T ")?|" DUR_T ")$"}},
        {"uuid", {"^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"}},
        {"ipv4", {"^" IPV4 "$"}},
        {"ip-address", {"^" IPV4 "$"}}, /* Draft 3's name. */
        {"ipv6", {"^" IPV6 "$"}},
        {"hostname", {"^" HOST "$"}},
        {"host-name", {"^" HOST "$"}}, /* Draft 3's name. */
        {"idn-hostname", {"^" IDN_HOST "$"}},
        {"email", {"^" LOCAL "@" MAIL_HOST "$"}},
        {"idn-email", {"^" IDN_ATOM "{1,40}(\\." IDN_ATOM "{1,10}){0,2}@" IDN_HOST "$"}},
        {"uri", {"^" ADDRESS("", "") "$"}},
        {"uri-reference", {"^" ADDRESS("", "") "$", "^" RELATIVE("", "") "$"}},
        {"iri", {"^" ADDRESS(U, Q) "$"}},
        {"iri-reference", {"^" ADDRESS(U, Q) "$", "^" RELATIVE(U, Q) "$"}},
        {"uri-template", {"^" TEMPLATE "$"}},
        {"json-pointer", {"^" POINTER "$"}},
        {"relative-json-pointer", {"^(0|[1-9]\\d{0,8})(#|" POINTER ")$"}},
        {"regex", {"^" RX_IN(RX_IN(RX_FLAT)) "$"}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows[i].patterns;
        }
    }
    return NULL;
}
