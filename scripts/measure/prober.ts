/* A process that asks one server again and again on one connection, and says how long each answer took. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { setPriority } from 'node:os'
import { fileURLToPath } from 'node:url'

/** Pause between an answer and the next request. */
const PAUSE_MS = 5

interface Probe {
  readonly port: number
  readonly request: string
}

export interface Waits {
  readonly count: number
  readonly p50Ms: number
  readonly p99Ms: number
  readonly longestMs: number
}

/** Probes until it is stopped. A request that is still unanswered then counts with the time it has waited. */
export class Prober {
  readonly #child: ChildProcess

  constructor(probe: Probe) {
    this.#child = fork(fileURLToPath(import.meta.url), { execArgv: ['--import', 'tsx'] })
    setPriority(this.#child.pid ?? 0, 0)
    this.#child.send(probe)
  }

  async stop(): Promise<Waits> {
    this.#child.send('stop')
    const [waits] = (await once(this.#child, 'message')) as [number[]] // the only message that the process below sends
    this.#child.kill()
    const sorted = waits.sort((a, b) => a - b)
    const at = (share: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? NaN
    return { count: sorted.length, p50Ms: at(0.5), p99Ms: at(0.99), longestMs: at(1) }
  }
}

async function probe({ port, request }: Probe): Promise<void> {
  const waits: number[] = []
  let askedAtMs: number | undefined
  process.once('message', () => {
    if (askedAtMs !== undefined) waits.push(performance.now() - askedAtMs)
    process.send?.(waits)
  })
  const socket = connect(port, '127.0.0.1')
  for (;;) {
    askedAtMs = performance.now()
    socket.write(request)
    const chunk = await new Promise<Buffer>((resolve, reject) => {
      socket.once('data', resolve)
      socket.once('error', reject)
      socket.once('close', () => reject(new Error('the service closed the connection of a probe')))
    })
    if (!/^HTTP\/1\.1 (200|503) /.test(chunk.toString('latin1', 0, 20))) throw new Error(chunk.toString())
    waits.push(performance.now() - askedAtMs)
    askedAtMs = undefined
    socket.removeAllListeners('close').removeAllListeners('error')
    await sleep(PAUSE_MS)
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  // What the class above sends first.
  process.once('message', (message) => void probe(message as Probe))
}
