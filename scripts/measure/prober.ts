/* A process that asks one server again and again, and reports how long each answer took. */
import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setPriority } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'

/** Pause between an answer and the next request. */
const PAUSE_MS = 5
/** What the processes of a few probes need before they can ask. */
const LOADING_MS = 1500
/** Of this process, which makes the load: or probes would wait for its processor. */
const LOAD_NICENESS = 10
/** A request in which it occurs has a new number in its place each time: a POST needs a new id. */
export const COUNTER = 1_000_000_000

const SELF = fileURLToPath(import.meta.url)

interface Probe {
  readonly port: number
  readonly request: string
  /** Whether each request has its own connection. */
  readonly reconnects?: boolean
  /** Whether 503 is an answer too. Any other but 200 ends the process with an error. */
  readonly mayBeRefused?: boolean
}

/**
 * Probes while a load runs. Returns how long each answer took, in milliseconds, by probe, and what
 * the load returned. A request that is unanswered at the end counts with the time it waited.
 */
export async function probeDuring<T>(
  probes: readonly Probe[],
  load: () => Promise<T>,
): Promise<readonly [waits: readonly (readonly number[])[], result: T]> {
  setPriority(LOAD_NICENESS)
  const children = probes.map(() => fork(SELF, { execArgv: ['--import', 'tsx'] }))
  for (const { pid = 0 } of children) setPriority(pid, 0)
  await sleep(LOADING_MS)
  for (const [i, probe] of probes.entries()) children[i]?.send(probe)
  const result = await load()
  return [await Promise.all(children.map(stop)), result]
}

async function stop(child: ChildProcess): Promise<readonly number[]> {
  child.send('stop')
  // The only message that the process below sends.
  const [waits] = (await once(child, 'message')) as [number[]]
  child.kill()
  return waits
}

async function probe({ port, request, reconnects, mayBeRefused }: Probe): Promise<void> {
  const expected = mayBeRefused ? /^HTTP\/1\.1 (200|503) / : /^HTTP\/1\.1 200 /
  const waits: number[] = []
  let askedAtMs: number | undefined
  process.once('message', () => {
    if (askedAtMs !== undefined) waits.push(performance.now() - askedAtMs)
    process.send?.(waits)
  })
  let socket: Socket | undefined
  for (let number = COUNTER; ; number++) {
    askedAtMs = performance.now()
    socket ??= connect(port, '127.0.0.1')
    const chunk = await answerOf(socket, request.replace(String(COUNTER), String(number)))
    if (!expected.test(chunk.toString('latin1'))) throw new Error(chunk.toString())
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

if (process.argv[1] === SELF) {
  // What the function above sends first.
  process.once('message', (message) => void probe(message as Probe))
}
