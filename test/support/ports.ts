import { once } from 'node:events'
import { createServer } from 'node:net'

/** Below the ports of outgoing connections, which could take one before a server starts again. */
const PORTS = { from: 10_000, count: 20_000 } as const
/** A loopback address that nothing else listens on. */
const RESERVING = '127.83.1.1'

/** A port that only this process and its children use until it ends, even while none listens. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = PORTS.from + Math.floor(Math.random() * PORTS.count)
    // The same port of another address reserves it: another caller of this function fails there.
    // Linux has the whole of 127.0.0.0/8.
    if (process.platform === 'linux' && !(await canListen(port, RESERVING, true))) continue
    if (await canListen(port, '127.0.0.1', false)) return port
  }
}

async function canListen(port: number, host: string, keep: boolean): Promise<boolean> {
  const server = createServer().unref().listen(port, host)
  const can = await once(server, 'listening').then(
    () => true,
    () => false,
  )
  if (!keep) server.close()
  return can
}

/** The port of an address as the service names it; 0 of none. */
export function portOf(url = 'http://none:0'): number {
  return Number(new URL(url).port)
}
