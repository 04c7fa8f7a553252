/* The floor under every load generator on this machine: a closed loop that reads, writes and parses nothing. What a
 * generator costs beyond it is its own doing. floor HOST PORT CONNECTIONS SECONDS; the answer must come in one piece. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <time.h>
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

int main(int argc, char **argv) {
    if (argc != 5) { fprintf(stderr, "floor HOST PORT CONNECTIONS SECONDS\n"); return 2; }
    int n = atoi(argv[3]);
    double seconds = atof(argv[4]);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    inet_pton(AF_INET, argv[1], &a.sin_addr);
    char req[256];
    int len = snprintf(req, sizeof req, "GET / HTTP/1.1\r\nHost: %s:%s\r\n\r\n", argv[1], argv[2]);
    int ep = epoll_create1(0);
    for (int i = 0; i < n; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
        if (connect(fd, (void *)&a, sizeof a)) { perror("connect"); return 1; }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        if (write(fd, req, len) != len) return 1;
    }
    struct timespec t0, t;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    static char buf[65536];
    struct epoll_event ev[128];
    unsigned long done = 0;
    for (;;) {
        int k = epoll_wait(ep, ev, 128, 100);
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (t.tv_sec - t0.tv_sec + (t.tv_nsec - t0.tv_nsec) / 1e9 >= seconds) break;
        for (int i = 0; i < k; i++) {
            ssize_t r = read(ev[i].data.fd, buf, sizeof buf);
            if (r <= 0) { if (r < 0 && errno == EAGAIN) continue; fprintf(stderr, "closed\n"); return 1; }
            done++;
            if (write(ev[i].data.fd, req, len) != len) return 1;
        }
    }
    printf("%lu requests\n", done);
    return 0;
}
