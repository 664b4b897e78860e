/* http_get.h: ask the small HTTP server (platform/telemetry/listen.h) as a client does. */
#ifndef TESTS_PLATFORM_HTTP_GET_H
#define TESTS_PLATFORM_HTTP_GET_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* The complete reply to a GET at an address "...:PORT" of this machine. */
static inline void http_get(const char *address, const char *path, char *reply, size_t room) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    char ask[128];
    size_t n = 0;
    ssize_t got;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    (void)snprintf(ask, sizeof ask, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                   path);
    assert_int_equal(write(fd, ask, strlen(ask)), (ssize_t)strlen(ask));
    while ((got = read(fd, reply + n, room - 1 - n)) > 0) {
        n += (size_t)got;
    }
    reply[n] = '\0';
    close(fd);
}

#endif
