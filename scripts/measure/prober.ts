/* A process that asks one server again and again, and reports how long each answer took. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setPriority } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

/** Pause between an answer and the next request. */
const PAUSE_MS = 5

interface Probe {
  readonly port: number
  readonly request: string
  /** Whether each request has its own connection. */
  readonly reconnects: boolean
}

/** Probes until it is stopped. A request that is unanswered then counts with the time it waited. */
export class Prober {
  readonly #child: ChildProcess

  constructor(probe: Probe) {
    this.#child = fork(fileURLToPath(import.meta.url), { execArgv: ['--import', 'tsx'] })
    setPriority(this.#child.pid ?? 0, 0)
    this.#child.send(probe)
  }

  /** How long each answer took, in milliseconds. */
  async stop(): Promise<readonly number[]> {
    this.#child.send('stop')
    // The only message that the process below sends.
    const [waits] = (await once(this.#child, 'message')) as [number[]]
    this.#child.kill()
    return waits
  }
}

async function probe({ port, request, reconnects }: Probe): Promise<void> {
  const waits: number[] = []
  let askedAtMs: number | undefined
  process.once('message', () => {
    if (askedAtMs !== undefined) waits.push(performance.now() - askedAtMs)
    process.send?.(waits)
  })
  let socket: Socket | undefined
  for (;;) {
    askedAtMs = performance.now()
    socket ??= connect(port, '127.0.0.1')
    const chunk = await answerOf(socket, request)
    if (!/^HTTP\/1\.1 (200|503) /.test(chunk.toString('latin1', 0, 20)))
      throw new Error(chunk.toString())
    waits.push(performance.now() - askedAtMs)
    askedAtMs = undefined
    if (reconnects) {
      socket.destroy()
      socket = undefined
    }
    await sleep(PAUSE_MS)
  }
}

/** Its first bytes: the answers to probes are short. */
function answerOf(socket: Socket, request: string): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    socket.once('data', (chunk: Buffer) => {
      socket.removeAllListeners()
      resolve(chunk)
    })
    socket.once('error', reject)
    socket.once('close', () => reject(new Error('the service closed the connection of a probe')))
    socket.write(request)
  })
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  // What the class above sends first.
  process.once('message', (message) => void probe(message as Probe))
}
