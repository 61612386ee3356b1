import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { memoryOf } from './memory.ts'
import { signToken } from './tokens.ts'
import { head } from './wire.ts'

/*
 * Clients that make the service hold as much as they can: what they send, and what it takes.
 */

/** The most headers that a request may have, Host included. Together they are just below 16 KiB. */
const MOST_HEADERS = 99
const VALUE_CHARS = 155
/** The memory has settled when it stays the same for this long. */
const QUIET_MS = 500

/** The largest request without a token that is answered and not closed. */
export const HEAVY = head('GET', '/plants', {
  token: undefined,
  lines: Array.from({ length: MOST_HEADERS - 1 }, (_, at) => `x${at}: ${'x'.repeat(VALUE_CHARS)}`),
})

/** Headers without their end. Node's parser does not count separators: this is below its 16 KiB. */
export const MANY_HEADERS = `GET /plants HTTP/1.1\r\nHost: a\r\n${'a: b\r\n'.repeat(5300)}`

/** A request whose body comes in chunks of one byte, and does not end. */
export function oneByteChunks(bearer: string, method = 'POST'): string {
  const lines = ['Content-Type: application/json', 'Transfer-Encoding: chunked']
  return head(method, '/plants', { token: bearer, lines }) + '1\r\nx\r\n'.repeat(40_000)
}

/** A token whose key is not known. */
export function strangeToken(kid: string): string {
  return signToken({ alg: 'ES256', kid }, { sub: 'a' }, () => Buffer.alloc(64, 1))
}

/** Connections that send this and never read. They keep no process alive. */
export function flood(
  target: number | string,
  count: number,
  bytes: (at: number) => string,
): readonly Socket[] {
  return Array.from({ length: count }, (_, at) => {
    const socket = typeof target === 'string' ? connect(target) : connect(target, '127.0.0.1')
    socket.pause().unref().on('error', () => {})
    socket.write(bytes(at), 'latin1')
    return socket
  })
}

/** The most that was resident since the last call, in MiB, once it grows no more. Linux only. */
export async function peakMiB(pid: number | undefined): Promise<number> {
  let most = 0
  for (let grewAtMs = performance.now(); performance.now() - grewAtMs < QUIET_MS; await sleep(20)) {
    const now = memoryOf(pid).residentMiB
    if (now <= most + 1) continue
    most = now
    grewAtMs = performance.now()
  }
  const { peakMiB: peak } = memoryOf(pid)
  // The kernel's peak begins anew (proc(5), clear_refs).
  writeFileSync(`/proc/${pid}/clear_refs`, '5')
  return peak
}

/** An issuer of keys that takes requests and never answers. */
export async function silentIssuer(): Promise<{ readonly url: string; close(): void }> {
  const server = createServer(() => {}).listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  // It listens on TCP.
  const { port } = server.address() as AddressInfo
  const close = (): void => server.close().closeAllConnections()
  return { url: `http://127.0.0.1:${port}/keys`, close }
}
