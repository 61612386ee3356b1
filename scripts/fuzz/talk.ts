import { connect, type Socket } from 'node:net'
import { setImmediate as nextTick, setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../dist/errors.js'
import { certainAnswers, type Heard } from '../../test/support/oracle/compare.ts'
import { isHead, type Reading, readRequests } from '../../test/support/oracle/requests.ts'
import { ResponseReader } from '../../test/support/response.ts'

/** What a connection sends, and how it ends. All text is latin1. */
export interface Script {
  readonly text: string
  /** Where one write ends and the next begins. */
  readonly cuts: readonly number[]
  /** `stall`: the rest comes byte by byte, more slowly than the service waits. */
  readonly ending: 'half-close' | 'answers-first' | 'destroy' | 'reset' | 'stall'
  /** With `destroy`, `reset` and `stall`: how many bytes are sent before it. */
  readonly sendOnly: number
  /** Milliseconds between writes, 0 for one tick of the event loop. */
  readonly pauseMs: number
  /** Whether nothing is read before everything is sent: a reset in between loses answers. */
  readonly readsLate: boolean
}

/** Longer than any answer takes on a loaded machine: the service waits 30 s for a request. */
const PATIENCE_MS = 35_000
/** Between the bytes of a client that stalls. */
const STALL_MS = 500

/** Sends requests at once and ends its side: the plainest script. */
export function plainScript(text: string): Script {
  return { text, cuts: [], ending: 'half-close', sendOnly: 0, pauseMs: 0, readsLate: false }
}

/** Runs a script, and waits until the connection is closed. `readings` are those of its text. */
export async function talk(
  port: number,
  script: Script,
  readings: readonly Reading[] = readRequests(script.text),
): Promise<Heard> {
  const { ending, readsLate } = script
  const startedAtMs = performance.now()
  const certain = certainAnswers(readings)
  const reader = new ResponseReader((index) => isHead(readings[index]))
  const { answers } = reader
  const rest = (): string => JSON.stringify(reader.rest.slice(0, 300))
  let flaw: string | undefined
  let error: string | undefined
  let haveCertain = (): void => {}
  const certainCame = new Promise<void>((resolve) => (haveCertain = resolve))
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true })
  const push = (text: string, ended: boolean): void => {
    try {
      reader.push(text, ended)
      if (ended && reader.rest !== '') throw new Error(`the answers end with ${rest()}`)
    } catch (thrown) {
      flaw ??= reasonOf(thrown)
      socket.destroy()
    }
    if (ended || answers.length >= certain) haveCertain()
  }
  socket.setEncoding('latin1').on('data', (text: string) => push(text, false))
  socket.on('end', () => {
    push('', true)
    socket.end()
  })
  // What a reset means is decided by which answers are missing.
  socket.on('error', ({ message }) => (error = message))
  const closed = new Promise<void>((resolve) => socket.on('close', () => resolve()))
  if (readsLate) socket.pause()
  const patience = setTimeout(() => {
    flaw ??= `no end after ${PATIENCE_MS} ms, and ${answers.length} answers; then ${rest()}`
    socket.destroy()
  }, PATIENCE_MS)

  await send(socket, script)
  const cut = ending === 'destroy' || ending === 'reset'
  if (cut) await pause(script)
  else if (ending === 'answers-first' && answers.length < certain)
    await Promise.race([certainCame, closed])
  if (ending === 'destroy') socket.destroy()
  else if (ending === 'reset') socket.resetAndDestroy()
  else socket.end()
  await closed
  clearTimeout(patience)
  const end = socket.readableEnded ? 'with an end' : 'without an end'
  return {
    answers,
    cut,
    end: `${end}${error === undefined ? '' : `, ${error}`}; ${rest()}`,
    isReset: error !== undefined,
    tookMs: performance.now() - startedAtMs,
    flaw,
  }
}

async function send(socket: Socket, script: Script): Promise<void> {
  const { text, cuts, ending, sendOnly } = script
  const isWhole = ending === 'half-close' || ending === 'answers-first'
  const isOpen = (): boolean => !socket.readableEnded && !socket.closed
  let sent = 0
  for (const end of [...cuts, text.length]) {
    const until = isWhole ? end : Math.min(end, sendOnly)
    if (socket.closed || until <= sent) continue
    socket.write(text.slice(sent, until), 'latin1')
    sent = until
    if (end < text.length) await pause(script)
  }
  socket.resume()
  for (; ending === 'stall' && isOpen(); sent++) {
    await sleep(STALL_MS)
    if (isOpen()) socket.write(text.slice(sent, sent + 1), 'latin1')
  }
}

function pause({ pauseMs }: Script): Promise<void> {
  return pauseMs > 0 ? sleep(pauseMs) : nextTick()
}
