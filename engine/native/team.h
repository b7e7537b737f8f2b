// Team: threads that share the tasks of one phase after another.
//
// A task is claimed by whoever is free, so a thread that the system takes off its core holds
// up one task and not a phase. Which thread runs a task changes no bit of its result.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace tidegate {

class Team {
  public:
    explicit Team(int threads) {
        workers_.reserve(threads - 1);
        for (int i = 1; i < threads; ++i) {
            try {
                workers_.emplace_back([this, i] { work(i); });
            } catch (const std::system_error&) {
                return;  // The system gives no more; those there are do the same work.
            }
        }
    }

    ~Team() {
        ending_.store(true);
        wake();
        for (auto& worker : workers_) worker.join();
    }

    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // While there is one, the workers wait for the next phase awake, else asleep.
    class Awake {
      public:
        explicit Awake(Team& team) : team_(team) {
            team_.busy_.store(true, std::memory_order_release);
            team_.wake();
        }
        ~Awake() { team_.busy_.store(false, std::memory_order_release); }
        Awake(const Awake&) = delete;
        Awake& operator=(const Awake&) = delete;

      private:
        Team& team_;
    };

    // Call task(index, thread) for each index below count; returns when all are done.
    // For one caller at a time.
    template <class Task>
    void run(int count, const Task& task) {
        if (workers_.empty() || count == 1) {
            for (int i = 0; i < count; ++i) task(i, 0);
            return;
        }
        for (int begin = 0; begin < count; begin += MOST) {
            const int part = count - begin < MOST ? count - begin : MOST;
            auto shifted = [&task, begin](int i, int thread) { task(begin + i, thread); };
            share(part, shifted);
        }
    }

  private:
    // A phase in one word, so that a claim is decided by a single read of it: a phase's
    // number, how many tasks it has, and how many are claimed.
    static constexpr int BITS = 20;
    static constexpr int MOST = 1 << (BITS - 1);
    static constexpr uint64_t MASK = (uint64_t{1} << BITS) - 1;
    static constexpr int AWAKE = 1 << 14;  // polls of a waiting thread before it lets go

    template <class Task>
    void share(int count, const Task& task) {
        call_ = [](const void* data, int i, int thread) {
            (*static_cast<const Task*>(data))(i, thread);
        };
        data_ = &task;
        done_.store(0, std::memory_order_relaxed);
        const uint64_t phase = (word_.load(std::memory_order_relaxed) >> (2 * BITS)) + 1;
        word_.store(phase << (2 * BITS) | static_cast<uint64_t>(count) << BITS,
                    std::memory_order_seq_cst);
        if (asleep_.load(std::memory_order_seq_cst) > 0) wake();
        claim(0);
        for (int polls = 0; done_.load(std::memory_order_acquire) < count;)
            if (++polls < AWAKE) _mm_pause();
            else std::this_thread::yield();
    }

    static bool open(uint64_t word) { return (word & MASK) < (word >> BITS & MASK); }

    void claim(int thread) {
        while (open(word_.load(std::memory_order_acquire))) {
            const uint64_t word = word_.fetch_add(1, std::memory_order_acq_rel);
            if (!open(word)) return;
            // Unfinished tasks keep the phase, and so what call_ and data_ hold.
            call_(data_, static_cast<int>(word & MASK), thread);
            done_.fetch_add(1, std::memory_order_release);
        }
    }

    void work(int thread) {
        int polls = 0;
        while (!ending_.load(std::memory_order_acquire)) {
            if (open(word_.load(std::memory_order_acquire))) {
                claim(thread);
                polls = 0;
            } else if (busy_.load(std::memory_order_acquire) && ++polls < AWAKE) {
                _mm_pause();
            } else {
                sleep();
                polls = 0;
            }
        }
    }

    void sleep() {
        const uint32_t ticket = alarm_.load(std::memory_order_seq_cst);
        asleep_.fetch_add(1, std::memory_order_seq_cst);
        // Looked at once more: what came before asleep_ was raised rang no alarm.
        if (!open(word_.load(std::memory_order_seq_cst)) && !ending_.load()) alarm_.wait(ticket);
        asleep_.fetch_sub(1, std::memory_order_seq_cst);
    }

    void wake() {
        alarm_.fetch_add(1, std::memory_order_seq_cst);
        alarm_.notify_all();
    }

    std::vector<std::thread> workers_;
    alignas(64) std::atomic<uint64_t> word_{0};
    alignas(64) std::atomic<int> done_{0};
    alignas(64) std::atomic<uint32_t> alarm_{0};
    std::atomic<int> asleep_{0};
    std::atomic<bool> busy_{false};
    std::atomic<bool> ending_{false};
    void (*call_)(const void*, int, int) = nullptr;
    const void* data_ = nullptr;
};

}  // namespace tidegate
