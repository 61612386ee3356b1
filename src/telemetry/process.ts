import { Histogram, type Metrics } from './metrics.ts'

/** Often enough to meet a stall, seldom enough to cost nothing. */
const LOOP_CHECK_MS = 100
const LOOP_BOUNDS_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]

/**
 * Figures of the process, with the names that every Prometheus client uses. It measures how late
 * timers fire, until the returned function is called.
 */
export function watchProcess(metrics: Metrics): () => void {
  const delays = new Histogram(LOOP_BOUNDS_SECONDS)
  const startedAtSeconds = Date.now() / 1000 - process.uptime()
  const started = 'When the process began, in seconds since 1970.'
  const late = `How late a timer fires, measured every ${LOOP_CHECK_MS} ms.`
  metrics.add('gauge', 'process_start_time_seconds', started, () => startedAtSeconds)
  metrics.add('gauge', 'process_resident_memory_bytes', 'Resident memory.', process.memoryUsage.rss)
  metrics.add('counter', 'process_cpu_seconds_total', 'User and system CPU time.', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e6
  })
  metrics.add('histogram', 'nodejs_eventloop_delay_seconds', late, () => delays.samples())
  let checkedAtMs = performance.now()
  const timer = setInterval(() => {
    const nowMs = performance.now()
    delays.observe(Math.max(0, nowMs - checkedAtMs - LOOP_CHECK_MS) / 1000)
    checkedAtMs = nowMs
  }, LOOP_CHECK_MS).unref()
  return () => clearInterval(timer)
}
