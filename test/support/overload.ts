import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { startService } from './service.ts'
import { head, Wire, type WireAnswer } from './wire.ts'

const HOLDERS_MAX = 8

/** The answer once unfinished bodies take all their memory budget; any answer if none fails. */
export async function answerUnderLoad(
  t: TestContext,
  ask: (port: number) => Promise<WireAnswer>,
): Promise<WireAnswer> {
  const { port } = await startService(t, { maxBodyBytes: 16 * 2 ** 20 })
  const announced = head('POST', '/plants', {
    lines: ['Content-Type: application/json', `Content-Length: ${16 * 2 ** 20}`],
  })
  const holders: Wire[] = []
  // Four fill the budget; one that arrives while a small body is held is refused itself.
  for (;;) {
    const holder = await Wire.to(port)
    holders.push(holder)
    holder.write(`${announced}{`)
    await sleep(20)
    const answer = await ask(port)
    if (answer.status < 400 && holders.length < HOLDERS_MAX) continue
    // Not after the test: the service is closed first then, and would wait for them.
    for (const each of holders) each.destroy()
    return answer
  }
}
