import { join } from 'node:path'
import type { Row } from '../../dist/store/sqljs/disk/journal-format.js'
import { temporaryDirectorySync } from '../../test/support/directories.ts'
import type { Environment, Program, ServerProcess } from '../../test/support/launch.ts'
import { launch, serviceEnvironment } from '../../test/support/launch.ts'
import { type Memory, memoryOf } from '../../test/support/memory.ts'
import { writeStore } from '../../test/support/store-files.ts'

/** A data directory with these plants. */
export async function filledDirectory(rows: Iterable<Row>): Promise<string> {
  const data = join(temporaryDirectorySync(), 'data')
  await writeStore(data, rows)
  return data
}

export type MeasuredService = ServerProcess & { memory(): Memory }

/** Starts the service with priority on one core; the load is meant to use the other. */
export async function startMeasured(
  data: string,
  env: Environment = {},
  program: Program = {},
): Promise<MeasuredService> {
  const prefix = ['taskset', '-c', '0', 'nice', '-n', '-10']
  const settings = serviceEnvironment(data, {
    PLANTS_MAX_DATA_BYTES: String(2 ** 29),
    // The default, and room for what asks beside the attackers.
    PLANTS_MAX_CONNECTIONS: '1010',
    ...env,
  })
  const launched = launch(settings, { prefix, onLines: () => {}, ...program })
  const ports = await launched.listening
  return { ...launched, ...ports, memory: () => memoryOf(launched.pid) }
}

export function mib(value: number): string {
  return `${value.toFixed(0)} MiB`
}
