import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { PlantDatabase, type Row } from '../../dist/store/sqljs/database.js'
import { nodeFiles } from '../../dist/store/sqljs/files.js'
import { SNAPSHOT, writeSnapshot } from '../../dist/store/sqljs/snapshot.js'
import { StoreDirectory } from '../../dist/store/sqljs/store-directory.js'

const INSERT_ROWS = 10_000

/** Inserts the plants of one batch. @throws Error if an id is taken. */
export function insertAs(database: PlantDatabase, rows: readonly Row[], sequence: number): void {
  database.insert(rows.map((row) => ({ row, sequence })))
}

/** Writes the directory that a clean stop leaves of these plants. Returns the snapshot's path. */
export async function writeStore(directory: string, rows: Iterable<Row>): Promise<string> {
  mkdirSync(directory, { recursive: true })
  const database = await PlantDatabase.building()
  let batch: Row[] = []
  for (const row of rows) {
    if (batch.push(row) < INSERT_ROWS) continue
    insertAs(database, batch, 1)
    batch = []
  }
  insertAs(database, batch, 1)
  const bytes = database.toFile({ sequence: 1, complete: true })
  await writeSnapshot(new StoreDirectory(nodeFiles, directory), bytes, 1)
  database.close()
  return join(directory, SNAPSHOT)
}

/** `count` rows, each made from its index. */
export function* rowsOf(count: number, row: (index: number) => Row): Generator<Row> {
  for (let index = 0; index < count; index++) yield row(index)
}
