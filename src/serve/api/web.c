/* web.c: the two pages, / and /status. The assembler copies their parts (pages/) into the binary,
 * so that they are edited as web files. They load nothing from other hosts, and the policy sent
 * with them forbids it. */
#include <stdio.h>
#include <string.h>

#include "serve/api/route.h"

extern const char lt_web_chat[], lt_web_status[]; /* 0-terminated. */

#define TEXT(file) ".incbin \"src/serve/pages/" file "\"\n"
__asm__(".section .rodata\n"
        ".global lt_web_chat\n"
        "lt_web_chat:\n" TEXT("chat_top.html") TEXT("chat.css") TEXT("chat_body.html")
            TEXT("markdown.js") TEXT("maths.js") TEXT("conversations.js") TEXT("align.js")
                TEXT("chat.js") TEXT("write.js") TEXT("start.js")
                    TEXT("chat_end.html") ".byte 0\n"
                                          ".global lt_web_status\n"
                                          "lt_web_status:\n" TEXT("status.html") ".byte 0\n"
                                                                                 ".previous\n");

static void send_page(lt_call *call, const char *page) {
    static const char policy[] =
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
        "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'\r\n"
        "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
        "Cache-Control: no-cache\r\n";
    char headers[sizeof policy + sizeof call->extra];
    snprintf(headers, sizeof headers, "%s%s", policy, call->extra);
    lt_http_reply(call->conn, 200, "text/html; charset=utf-8", headers, page, strlen(page));
}

void lt_api_chat_page(lt_call *call) {
    send_page(call, lt_web_chat);
}

void lt_api_status_page(lt_call *call) {
    send_page(call, lt_web_status);
}
