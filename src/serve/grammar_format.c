/* grammar_format.c: the formats of schemas as patterns. Each is a part of what its RFC allows, long enough for use and bounded, so that all that is
 * produced is valid: dates to the 28th of February, hosts of seven labels, addresses without quotes. */
#include <string.h>

#include "serve/grammar_schema.h"

const char *lt_gschema_format(const char *name) {
#define DATE                                                                                       \
    "(000[1-9]|00[1-9]\\d|0[1-9]\\d{2}|[1-9]\\d{3})-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0["  \
    "469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]"                                                      \
    "|1\\d|2[0-8]))"
#define TIME  "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,9})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define H16   "[0-9A-Fa-f]{1,4}"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
    static const struct {
        const char *name, *pattern;
    } rows[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration", "^P(\\d{1,4}W|(\\d{1,4}Y(\\d{1,4}M(\\d{1,4}D)?)?|\\d{1,4}M(\\d{1,4}D)?|\\d{1,"
                     "4}D)(T(\\d{1,4}H(\\d{1,4}M(\\d{1,4}S)?)?|\\d{1,4}M(\\d{1,4}S)?|\\d{1,4}S))?|"
                     "T(\\d{1,4}H(\\d{1,4}M(\\d{1,4}S)?)?|\\d{1,4}M(\\d{1,4}S)?|\\d{1,4}S))$"},
        {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
        {"ipv4", "^(" OCTET "\\.){3}" OCTET "$"},
        {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,6}:" H16 "|::(" H16 ":){0,5}" H16 "|(" H16
                 ":){1,7}:|::)$"},
        {"hostname", "^" LABEL "(\\." LABEL "){0,6}$"},
        {"email",
         "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@" LABEL "(\\." LABEL "){1,4}$"},
        {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}://[A-Za-z0-9._~!$&'()*+,;=:@/?#-]+$"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return rows[i].pattern;
        }
    }
    return NULL;
}
