import { setTimeout as sleep } from 'node:timers/promises'
import { call } from '../../test/support/http.ts'
import { plantsOf } from '../../test/support/ledger.ts'
import { rowsOf } from '../../test/support/store-files.ts'
import { filledDirectory, startMeasured } from './service.ts'

const PLANTS = 100_000
const ROUNDS = 5

/** One list without a limit: how far the service's memory grows over idle while it is sent. */
export async function measure(): Promise<void> {
  const data = await filledDirectory(
    rowsOf(PLANTS, (at) => ['alice', String(at), `Monstera ${at}`, 'indoor']),
  )
  const growths: number[] = []
  for (let round = 0; round < ROUNDS; round++) growths.push(await growth(data))
  console.log(`growth ${growths.map((mib) => mib.toFixed(1)).join(', ')} MiB`)
}

async function growth(data: string): Promise<number> {
  const service = await startMeasured(data)
  await call(service.port, { path: '/plants?limit=1' })
  await sleep(1000)
  const idleMiB = service.memory().residentMiB
  let peakMiB = idleMiB
  const sampling = setInterval(() => {
    peakMiB = Math.max(peakMiB, service.memory().residentMiB)
  }, 2)
  const { text } = await call(service.port)
  clearInterval(sampling)
  const plants = plantsOf(text)
  if (plants.length !== PLANTS || plants.some(({ name }, i) => name !== `Monstera ${i}`))
    throw new Error('the list is not complete and in order')
  console.log(`idle ${idleMiB.toFixed(1)} MiB, peak ${peakMiB.toFixed(1)} MiB`)
  await service.kill('SIGTERM')
  return peakMiB - idleMiB
}
