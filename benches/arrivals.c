/* A server that notes when each request arrives, for benches/schedule: one epoll loop, every connection kept.
 *
 *   arrivals PORT FILE      on SIGTERM writes a line a request: nanoseconds (CLOCK_REALTIME)
 *
 * A request is what ends in an empty line; bodies are not understood. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 20000000
static volatile sig_atomic_t ended;
static void end(int signal) { (void)signal; ended = 1; }

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
    /* How far each connection is in "\r\n\r\n". */
    static unsigned char matched[65536];
    uint64_t *at = malloc(MOST * sizeof *at);
    size_t count = 0;
    struct sigaction action = { .sa_handler = end };
    sigaction(SIGTERM, &action, NULL);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    if (!at || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) { perror("arrivals"); return 1; }
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN, .data.fd = listener }, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    while (!ended) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (peer < 0) continue;
                if (peer >= (int)sizeof matched) { close(peer); continue; }
                setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                matched[peer] = 0;
                event.data.fd = peer;
                epoll_ctl(epoll, EPOLL_CTL_ADD, peer, &event);
                continue;
            }
            char buffer[16384];
            ssize_t got = read(fd, buffer, sizeof buffer);
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN) close(fd);
                continue;
            }
            struct timespec now;
            clock_gettime(CLOCK_REALTIME, &now);
            for (ssize_t b = 0; b < got; b++) {
                char want = (matched[fd] & 1) ? '\n' : '\r';
                matched[fd] = buffer[b] == want ? matched[fd] + 1 : buffer[b] == '\r';
                if (matched[fd] == 4) {
                    matched[fd] = 0;
                    if (count < MOST) at[count++] = (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec;
                    if (write(fd, answer, sizeof answer - 1) < 0) break;
                }
            }
        }
    }
    FILE *out = fopen(argv[2], "w");
    if (!out) { perror(argv[2]); return 1; }
    for (size_t i = 0; i < count; i++) fprintf(out, "%llu\n", (unsigned long long)at[i]);
    return fclose(out) ? 1 : 0;
}
