// Threads of a program's own. They wait in a short spin, then asleep: a call that lasts a tenth of a millisecond has a hundred
// phases, and waiting threads that never sleep would slow every other program down.
#pragma once
#include <pthread.h>
#include <cstdint>
#include "vector.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// The rounding of every thread of a program, whatever the process has set: to nearest, tiny numbers as 0 on x86.
struct Rounding {
#if defined(__x86_64__)
    unsigned before;
    Rounding() : before(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
    ~Rounding() { _mm_setcsr(before); }
#else
    Rounding() {}
    ~Rounding() {}
#endif
};

constexpr int SPINS = 4000;  // about 20 microseconds
constexpr int MOST_THREADS = 256;

class Crew {
  public:
    using Task = void (*)(void* with, int64_t part, int64_t parts);

    // Runs task(with, part, parts) on `parts` threads, this one among them; on this one alone where the crew is at work for
    // another call or threads cannot be had.
    void run(int64_t parts, Task task, void* with) {
        if (parts > 1) parts = enlist(parts);
        if (parts == 1) {
            task(with, 0, 1);
            return;
        }
        pthread_mutex_lock(&lock_);
        task_ = task, with_ = with, parts_ = parts, working_ = int32_t(parts - 1);
        __atomic_store_n(&round_, round_ + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&awake_);
        pthread_mutex_unlock(&lock_);
        task(with, 0, parts);
        for (int32_t left; (left = __atomic_load_n(&working_, __ATOMIC_ACQUIRE)) != 0;) await(&working_, left);
        __atomic_store_n(&busy_, 0, __ATOMIC_RELEASE);
    }

    // Waits until all parts of a task are here.
    void meet(int64_t parts) {
        if (parts == 1) return;
        const int32_t phase = __atomic_load_n(&phase_, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&met_, 1, __ATOMIC_ACQ_REL) == parts) {
            __atomic_store_n(&met_, 0, __ATOMIC_RELAXED);
            change(&phase_, phase + 1);
        } else {
            await(&phase_, phase);
        }
    }

    // After a fork the child has no threads, and no lock that it can trust.
    void forget() {
        lock_ = PTHREAD_MUTEX_INITIALIZER, awake_ = PTHREAD_COND_INITIALIZER;
        hired_ = 0, busy_ = 0, met_ = 0;
    }

  private:
    pthread_mutex_t lock_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t awake_ = PTHREAD_COND_INITIALIZER;
    int32_t busy_ = 0, round_ = 0, working_ = 0, phase_ = 0, met_ = 0;
    int64_t hired_ = 0, parts_ = 0;
    Task task_ = nullptr;
    void* with_ = nullptr;
    struct Seat {
        Crew* crew;
        int64_t part;
        int32_t round;
    } seats_[MOST_THREADS];

    int64_t enlist(int64_t parts) {
        if (__atomic_exchange_n(&busy_, 1, __ATOMIC_ACQUIRE)) return 1;
        if (parts > MOST_THREADS) parts = MOST_THREADS;
        for (pthread_t thread; hired_ < parts - 1; ++hired_) {
            Seat& seat = seats_[hired_] = {this, hired_ + 1, round_};
            if (pthread_create(&thread, nullptr, attend_to, &seat)) break;
            pthread_detach(thread);
        }
        if (hired_ == 0) __atomic_store_n(&busy_, 0, __ATOMIC_RELEASE);
        return hired_ + 1 < parts ? hired_ + 1 : parts;
    }

    static void* attend_to(void* seat) {
        static_cast<Seat*>(seat)->crew->work(*static_cast<Seat*>(seat));
        return nullptr;
    }
    void work(Seat& seat) {
        for (;;) {
            await(&round_, seat.round);
            pthread_mutex_lock(&lock_);
            seat.round = round_;
            const int64_t parts = parts_;
            pthread_mutex_unlock(&lock_);
            if (seat.part >= parts) continue;  // this one is not needed
            task_(with_, seat.part, parts);
            if (__atomic_sub_fetch(&working_, 1, __ATOMIC_ACQ_REL) == 0) wake();
        }
    }

    void await(const int32_t* word, int32_t old) {
        for (int spin = 0; spin < SPINS; ++spin) {
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != old) return;
#if defined(__x86_64__)
            _mm_pause();
#endif
        }
        pthread_mutex_lock(&lock_);
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == old) pthread_cond_wait(&awake_, &lock_);
        pthread_mutex_unlock(&lock_);
    }
    void change(int32_t* word, int32_t to) {
        pthread_mutex_lock(&lock_);
        __atomic_store_n(word, to, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&awake_);
        pthread_mutex_unlock(&lock_);
    }
    void wake() {
        pthread_mutex_lock(&lock_);
        pthread_cond_broadcast(&awake_);
        pthread_mutex_unlock(&lock_);
    }
};

Crew crew;

__attribute__((constructor)) void watch_forks() {
    pthread_atfork(nullptr, nullptr, [] { crew.forget(); });
}

}  // namespace
