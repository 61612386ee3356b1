import { readdirSync } from 'node:fs'
import { maxDescriptors } from './descriptors.ts'
import type { Histogram, Metrics } from './metrics.ts'

/**
 * How often the event loop is asked how late it is: often enough for a stall to be met, seldom
 * enough to cost nothing.
 */
const LOOP_CHECK_MS = 100
const LOOP_BOUNDS_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5]

/** The process itself, in the names that every Prometheus client uses. */
export function addProcessMetrics(metrics: Metrics): void {
  const startedAtSeconds = Date.now() / 1000 - process.uptime()
  metrics.counter('process_cpu_seconds_total', 'User and system CPU time of the process.', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e6
  })
  metrics.gauge('process_resident_memory_bytes', 'Resident memory of the process.', () =>
    process.memoryUsage.rss(),
  )
  metrics.gauge(
    'process_heap_bytes',
    'Heap of JavaScript in use.',
    () => process.memoryUsage().heapUsed,
  )
  metrics.gauge('process_open_fds', 'Open file descriptors.', openDescriptors)
  metrics.gauge('process_max_fds', 'Most file descriptors that may be open.', maxDescriptors)
  metrics.gauge(
    'process_start_time_seconds',
    'When the process began, in seconds since 1970.',
    () => startedAtSeconds,
  )
}

/** Measures how late timers come, as long as it is not stopped. */
export function watchEventLoop(metrics: Metrics): () => void {
  const delays: Histogram = metrics.histogram(
    'nodejs_eventloop_delay_seconds',
    `How late the event loop comes to a timer, asked every ${LOOP_CHECK_MS} ms.`,
    LOOP_BOUNDS_SECONDS,
  )
  let askedAtMs = performance.now()
  const timer = setInterval(() => {
    const now = performance.now()
    delays.observe(Math.max(0, now - askedAtMs - LOOP_CHECK_MS) / 1000)
    askedAtMs = now
  }, LOOP_CHECK_MS).unref()
  return () => clearInterval(timer)
}

/** Undefined where there is no /proc, or no descriptor left to read it with. */
function openDescriptors(): number | undefined {
  try {
    // The directory that is read here is open meanwhile, and listed.
    return readdirSync('/proc/self/fd').length - 1
  } catch {
    return undefined
  }
}
