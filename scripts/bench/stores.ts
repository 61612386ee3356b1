import { cpSync, mkdirSync } from 'node:fs'
import { PlantDatabase, type Row } from '../../dist/store/sqljs/database.js'
import { nodeFiles } from '../../dist/store/sqljs/files.js'
import { SNAPSHOT, writeSnapshot } from '../../dist/store/sqljs/snapshot.js'
import { plant, user } from './plants.ts'

/** What a store is filled with; ids go on from one user to the next. */
export interface Filling {
  readonly users: number
  readonly plants: number
}

export const EMPTY: Filling = { users: 0, plants: 0 }
const BATCH_ROWS = 10_000

/** Stores are built once, as the snapshot that a stop leaves, and copied for each server. */
export class Stores {
  readonly #directory: string
  readonly #built = new Map<string, Promise<void>>()

  constructor(directory: string) {
    this.#directory = directory
  }

  async copyTo(target: string, filling: Filling): Promise<void> {
    if (filling.users * filling.plants === 0) return
    const source = `${this.#directory}/${filling.users}x${filling.plants}`
    let built = this.#built.get(source)
    if (!built) this.#built.set(source, (built = build(source, filling)))
    await built
    cpSync(source, target, { recursive: true })
  }
}

async function build(directory: string, { users, plants }: Filling): Promise<void> {
  const database = await PlantDatabase.building()
  let rows: Row[] = []
  for (let i = 0; i < users * plants; i++) {
    const owner = user(Math.floor(i / plants))
    const { name, tag } = plant(i)
    rows.push(tag === undefined ? [owner, String(i + 1), name] : [owner, String(i + 1), name, tag])
    if (rows.length < BATCH_ROWS) continue
    database.insert(rows, 1)
    rows = []
  }
  database.insert(rows, 1)
  mkdirSync(directory, { recursive: true })
  await writeSnapshot(
    nodeFiles,
    directory,
    SNAPSHOT,
    database.toFile({ sequence: 1, complete: true }),
    1,
  )
  database.close()
}
