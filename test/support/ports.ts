import { once } from 'node:events'
import { createServer } from 'node:net'

/**
 * Below those that the kernel gives to outgoing connections: such a one could have taken it when
 * something starts again.
 */
const PORTS = { from: 10_000, count: 20_000 } as const
/** An address of this machine that nothing else listens at. */
const RESERVING = '127.83.1.1'

/**
 * A port for this process, and what it starts, alone, until it ends: also while nobody listens
 * there.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = PORTS.from + Math.floor(Math.random() * PORTS.count)
    // Whoever else asks for one here is kept away by the same port of another address, which Linux
    // has without further ado.
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
