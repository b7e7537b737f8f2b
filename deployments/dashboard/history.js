// What the last two minutes were like: snapshots of /load, and what their differences say.

const KEPT_S = 120;
const WINDOW_S = 60;
const RATE_S = 5;

/** The value below which a share `q` lies, from counts by bucket; null without any.
 *  Between two bounds it is as if values were spread evenly; above the last, it is that bound. */
export function quantile(q, bounds, counts) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  let below = 0;
  for (let i = 0; i < bounds.length; i++) {
    if (counts[i] > 0 && below + counts[i] >= q * total) {
      const from = i === 0 ? 0 : bounds[i - 1];
      return from + (bounds[i] - from) * ((q * total - below) / counts[i]);
    }
    below += counts[i];
  }
  return bounds[bounds.length - 1];
}

const sum = (list, key) => list.reduce((total, one) => total + one[key], 0);

/** A list of moments, oldest first. Times are in seconds, of a clock that never goes back. */
export class History {
  moments = [];

  add(at, load) {
    const last = this.moments.at(-1);
    // A new router counts from 0: what is older cannot be compared.
    if (last && load.totals.generated_tokens < last.load.totals.generated_tokens) this.moments = [];
    const { replicas, queue } = load;
    const total = sum(replicas, "total_blocks");
    const moment = {
      at,
      load,
      running: sum(replicas, "running"),
      seats: sum(replicas, "max_running"),
      waiting: queue.waiting + sum(replicas, "waiting"),
      blocks: total,
      used: total - sum(replicas, "free_blocks"),
    };
    this.moments.push(moment);
    while (this.moments[0].at < at - KEPT_S) this.moments.shift();
    moment.share = total ? moment.used / total : 0;
    moment.tokens = this.#rate("generated_tokens", RATE_S);
    const preempted = this.#rate("preemptions", WINDOW_S);
    moment.preempted = preempted === null ? null : preempted * 60;
    const counts = this.#ttft();
    moment.ttft = counts.reduce((a, b) => a + b, 0);
    moment.p50 = quantile(0.5, load.ttft.bounds, counts);
    moment.p90 = quantile(0.9, load.ttft.bounds, counts);
    return moment;
  }

  /** The oldest moment of the last so many seconds. */
  #since(seconds) {
    const now = this.moments.at(-1).at;
    return this.moments.find((moment) => moment.at >= now - seconds - 0.5);
  }

  #rate(name, seconds) {
    const now = this.moments.at(-1);
    const then = this.#since(seconds);
    if (then === now) return null;
    return (now.load.totals[name] - then.load.totals[name]) / (now.at - then.at);
  }

  #ttft() {
    const then = this.#since(WINDOW_S).load.ttft.counts;
    return this.moments.at(-1).load.ttft.counts.map((count, i) => count - then[i]);
  }
}
