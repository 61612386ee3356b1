import { writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { fill, groupOf } from '../../test/support/container.ts'
import { call } from '../../test/support/http.ts'
import { type Environment, FLAGS, launch, serviceEnvironment } from '../../test/support/launch.ts'
import { memoryOf } from '../../test/support/memory.ts'
import { scrape } from '../../test/support/metrics.ts'
import { rowsOf } from '../../test/support/store-files.ts'
import { token } from '../../test/support/tokens.ts'
import { filledDirectory, mib } from './service.ts'

const SIZES = [0, 10_000, 100_000, 1_000_000]
const ENV: Environment = { MALLOC_MMAP_THRESHOLD_: '1048576' }
const SETTLE_MS = 3000
/** Memory of a container, of JavaScript's heap, and of the embedded data, in MiB. */
const CONTAINERS = [
  { limitMiB: 128, oldMiB: 32, dataMiB: 4 },
  { limitMiB: 256, oldMiB: 64, dataMiB: 72 },
  { limitMiB: 512, oldMiB: 128, dataMiB: 200 },
  { limitMiB: 640, oldMiB: 192, dataMiB: 256 },
  { limitMiB: 1024, oldMiB: 256, dataMiB: 448 },
] as const

/** Memory and start by number of plants; and what small containers hold until they are full. */
export async function measure(): Promise<void> {
  console.log('plants | first answer | at rest | most during a compaction')
  for (const plants of SIZES) await measureSize(plants)
  console.log('container | old space | data | plants when full | most resident, not file-backed')
  for (const container of CONTAINERS) await fillContainer(container)
}

async function measureSize(plants: number): Promise<void> {
  const name = (at: number): string => `Monstera ${at}`
  const data = await filledDirectory(
    rowsOf(plants, (at) => [`user-${at % 1000}`, String(at), name(at), 'indoor']),
  )
  const startedAtMs = performance.now()
  const service = launch(serviceEnvironment(data, ENV), { options: FLAGS, onLines: () => {} })
  const ports = await service.listening
  await call(ports.port, { path: '/plants?limit=1', token: token('user-0') })
  const startMs = performance.now() - startedAtMs
  await sleep(SETTLE_MS)
  const { residentMiB } = memoryOf(service.pid)
  // The peak counts from here on (proc(5)).
  writeFileSync(`/proc/${service.pid}/clear_refs`, '5')
  // A directory that was filled from an export is compacted at its start.
  const before = (await scrape(ports.adminPort)).value(COMPACTIONS)
  await fill(ports, plants, 1000, ({ value }) => value(COMPACTIONS) > before)
  const { peakMiB } = memoryOf(service.pid)
  console.log([plants, `${startMs.toFixed(0)} ms`, mib(residentMiB), mib(peakMiB)].join(' | '))
  await service.kill('SIGKILL')
}

const COMPACTIONS = 'plant_store_compactions_total{result="success"}'

async function fillContainer(container: (typeof CONTAINERS)[number]): Promise<void> {
  const { limitMiB, oldMiB, dataMiB } = container
  const group = groupOf(limitMiB)
  if (!group) throw new Error('no group of processes could be made: are you root, on Linux?')
  const maxData = { PLANTS_MAX_DATA_BYTES: String(dataMiB * 2 ** 20) }
  const env = serviceEnvironment(await filledDirectory([]), { ...ENV, ...maxData })
  const options = [...FLAGS, `--max-old-space-size=${oldMiB}`]
  const service = launch(env, { options, prefix: group.prefix, onLines: () => {} })
  const { created } = await fill(await service.listening, 0, 200)
  const { peakMiB, anonymousMiB } = memoryOf(service.pid)
  const sizes = [limitMiB, oldMiB, dataMiB].map(mib)
  console.log([...sizes, created, mib(peakMiB), mib(anonymousMiB)].join(' | '))
  if ((await service.kill('SIGTERM')) !== 0) throw new Error(service.output())
  await group.remove()
}
