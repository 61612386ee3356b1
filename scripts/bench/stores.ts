import { cpSync } from 'node:fs'
import type { Row } from '../../dist/store/sqljs/journal-format.js'
import { rowsOf, writeStore } from '../../test/support/store-files.ts'
import { plant, user } from './plants.ts'

/** What a store is filled with; ids continue from one user to the next. */
export interface Filling {
  readonly users: number
  readonly plants: number
}

export const EMPTY: Filling = { users: 0, plants: 0 }

/** Stores are built once, as a clean stop leaves them, and copied for each server. */
export class Stores {
  readonly #directory: string
  readonly #built = new Map<string, Promise<unknown>>()

  constructor(directory: string) {
    this.#directory = directory
  }

  async copyTo(target: string, { users, plants }: Filling): Promise<void> {
    const count = users * plants
    if (count === 0) return
    const row = (index: number): Row => {
      const { name, tag } = plant(index)
      const owner = user(Math.floor(index / plants))
      const id = String(index + 1)
      return tag === undefined ? [owner, id, name] : [owner, id, name, tag]
    }
    const source = `${this.#directory}/${users}x${plants}`
    const built = this.#built.get(source) ?? writeStore(source, rowsOf(count, row))
    this.#built.set(source, built)
    await built
    cpSync(source, target, { recursive: true })
  }
}
